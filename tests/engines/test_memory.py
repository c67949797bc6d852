"""Running out of GPU memory: points are halved, then examples; the scores stay. A hook stands in for a full GPU."""

import pytest
import torch

from noback.engines import Local
from noback.errors import InputError
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import tiny_model, weights_of

POINTS = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), Move((Term(4, 1e-2),)), Move((Term(4, -1e-2),))]


def engine_with_memory(rows, task, **options):
    """An engine whose model runs out of memory above so many rows, what it says, and the rows of its forwards."""
    model, said, ran = tiny_model("roberta"), [], []

    def take(_model, _args, inputs):
        ran.append(len(inputs["input_ids"]))
        if ran[-1] > rows:
            raise torch.OutOfMemoryError

    model.register_forward_pre_hook(take, with_kwargs=True)
    return Local(model, weights_of(model), task.word_ids, say=said.append, **options), said, ran


def assert_scores(engine, task, batch, points=POINTS):
    model = tiny_model("roberta")
    expected = Local(model, weights_of(model), task.word_ids).score(batch, points)
    for one, other in zip(engine.score(batch, points), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "said_last"), [(16, "2 points and 8 examples"), (8, "1 points and 8 examples"), (1, "1 points and 1 ex")]
)
def test_running_out_halves_points_then_examples_and_is_remembered(small_task, rows, said_last):
    batch = small_task.batch(0, 8, 0)
    engine, said, ran = engine_with_memory(rows, small_task)
    assert_scores(engine, small_task, batch)
    ran.clear()
    assert_scores(engine, small_task, batch)
    assert max(ran) <= rows
    assert said_last in said[-1]
    assert not engine.point_by_point  # memory was missing; nothing was found against the model
    assert len(said) == len(set(said))


def test_an_evaluation_that_runs_out_does_not_part_the_points_of_a_step(small_task):
    engine, said, ran = engine_with_memory(4, small_task)
    assert_scores(engine, small_task, small_task.batch(0, 8, 0), [UNPERTURBED])
    assert said == ["out of GPU memory; from now on 1 points and 4 examples at a time"]
    engine.score(small_task.batch(0, 1, 0), POINTS)
    ran.clear()
    engine.score(small_task.batch(0, 1, 0), POINTS)
    assert ran == [4]


def test_one_example_at_one_point_that_does_not_fit_is_an_error(small_task):
    engine, _, _ = engine_with_memory(0, small_task)
    with pytest.raises(InputError, match="does not hold one example at one point"):
        engine.score(small_task.batch(0, 2, 0), POINTS)


def test_the_bounds_of_a_user_are_kept(small_task):
    engine, said, ran = engine_with_memory(6, small_task, probes_per_pass=2, micro_batch=3)
    assert_scores(engine, small_task, small_task.batch(0, 8, 0))
    assert max(ran) == 6
    assert not said


class Writes:
    """Writes a prompt's length, two prompts at a time at most."""

    def tokens(self, _model, prompts):
        if len(prompts) > 2:
            raise torch.OutOfMemoryError
        return [[len(prompt)] for prompt in prompts]


def test_running_out_while_texts_are_written_halves_the_prompts(small_task):
    model, said = tiny_model("roberta"), []
    engine = Local(model, weights_of(model), small_task.word_ids, say=said.append)
    prompts = [[5] * length for length in range(1, 6)]
    assert engine.write(prompts, [UNPERTURBED], Writes()) == [[[1], [2], [3], [4], [5]]]
    assert said == ["out of GPU memory; from now on 1 points and 2 examples at a time"]

"""A fast way is used once it equalled the slow one; the first step pays for the comparison with a few examples."""

from functools import partial

import pytest
import torch

from noback.engines import Local
from noback.engines.trust import Trust, near
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import tiny_causal, tiny_model, weights_of
from tests.engines.test_sharing import rows_batch

PAIR = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),))]


def same(one, other):
    return one == other


def test_a_kind_is_compared_once_and_remembered():
    said, ran = [], []
    trust = Trust(said.append)

    def run(kind):
        ran.append(kind)
        return 1

    for kind, slow, expected in (("one", 1, True), ("other", 2, False)):
        for _ in range(2):
            found = trust.check(kind, partial(run, kind), lambda slow=slow: slow, same, "slow it is")
            assert found is expected
        assert trust.refused(kind) is not expected
    assert ran == ["one", "other"]
    assert said == ["slow it is"]
    assert not trust.refused("never asked")


def test_a_fast_way_that_fails_is_not_taken_and_a_slow_one_that_fails_is_an_error():
    trust = Trust(lambda _: None)
    assert trust.check("kind", lambda: 1 // 0, lambda: 1, same) is False
    with pytest.raises(ZeroDivisionError):
        trust.check("other", lambda: 1, lambda: 1 // 0, same)


def test_running_out_of_memory_passes_through_and_teaches_nothing():
    def runs_out():
        raise torch.OutOfMemoryError

    trust = Trust(lambda _: None)
    with pytest.raises(torch.OutOfMemoryError):
        trust.check("kind", runs_out, lambda: 1, same)
    assert trust.check("kind", lambda: 1, lambda: 1, same)


def test_nothing_is_compared_while_a_forward_is_captured():
    capturing = [True]
    trust = Trust(lambda _: None, lambda: capturing[0])
    assert not trust.check("kind", lambda: 1, lambda: 1, same)
    capturing[0] = False
    assert trust.check("kind", lambda: 1, lambda: 1, same)


def test_what_is_near():
    one = torch.tensor([1.0, 2.0, float("-inf")])
    assert near(one + 1e-6, one, 1e-5)
    assert not near(one + 1e-3, one, 1e-5)
    assert not near(one[:2], one, 1e-5)
    assert not near(torch.full((3,), float("nan")), one, 1e-5)
    assert not near(one[2:], one[2:], 1e-5)  # nothing to compare


def rows_of_forwards(model):
    """The rows, points counted, of each forward of a model."""
    rows = []
    model.register_forward_pre_hook(lambda *given: rows.append(len(given[2]["input_ids"])), with_kwargs=True)
    return rows


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_the_first_step_costs_at_most_one_forward_more_than_any_other(kind, small_task):
    model = tiny_model(kind)
    model.set_attn_implementation("sdpa")
    rows, batch, said = rows_of_forwards(model), small_task.batch(0, 8, 0), []
    engine = Local(model, weights_of(model), small_task.word_ids, say=said.append)
    engine.score(batch, PAIR)
    first = sum(rows)
    rows.clear()
    engine.score(batch, PAIR)
    assert rows == [16]
    assert first <= 2 * 16
    assert said == []


def test_the_first_evaluation_costs_a_few_rows_more(small_task):
    model = tiny_model("roberta")
    model.set_attn_implementation("sdpa")
    rows, batch = rows_of_forwards(model), small_task.batch(0, 8, 0)
    engine = Local(model, weights_of(model), small_task.word_ids)
    engine.score(batch, [UNPERTURBED])
    assert sum(rows) - 8 in (4, 6)  # two or three rows, the last layer whole and in part


def test_a_first_step_that_shares_prefixes_costs_at_most_one_plain_forward_more():
    model = tiny_causal("llama")
    tokens, said = [], []
    model.register_forward_pre_hook(lambda *given: tokens.append(given[2]["input_ids"].numel()), with_kwargs=True)
    batch = rows_batch([[0, 4, 5, 6, 7, 8, 9, 4, 5, 20 + row, 60 + row] for row in range(32)])
    engine = Local(model, weights_of(model), [10, 11], say=said.append)
    engine.score(batch, PAIR)
    first = sum(tokens)
    tokens.clear()
    engine.score(batch, PAIR)
    plain = 2 * batch.inputs["input_ids"].numel()
    assert 3 * sum(tokens) < plain  # shared by now
    assert first <= sum(tokens) + plain
    assert said == []


def test_a_check_that_takes_the_whole_batch_is_said():
    """The first rows share nothing, so that a few of them do not show what all do."""
    apart = [[100 + 10 * row + place for place in range(7)] for row in range(7)]
    alike = [[0, 5, 6, 7, 8, 9, 20 + row] for row in range(20)]
    model, said = tiny_causal("llama"), []
    engine = Local(model, weights_of(model), [10, 11], say=said.append)
    for _ in range(2):
        engine.score(rows_batch(apart + alike), PAIR)
    assert engine.tally.cached > 0
    assert said == ["LlamaForCausalLM is checked on 27 examples, once: fast ways against slow ones"]

"""The verdict on a run: it fits the course, is the same however the run was interrupted, and advises no harm."""

import dataclasses
import itertools
import json
import random
import re

import pytest

from noback import Accuracy, RunConfig, Sgd, TwoSided, resume, train
from noback.folder import RunFolder
from noback.health import tie_advice
from noback.journal import Contents, StepRecord
from noback.training import Interrupted
from noback.verdict import DIVERGING, LEARNING, NO_SIGNAL, TOO_EARLY, TOO_SMALL, evaluations, verdict

LR = 1e-5


def contents(losses, slopes=None, **config):
    """A journal's contents with these losses and slopes."""
    slopes = slopes or [1.0] * len(losses)
    steps = [StepRecord(step, loss, (slope,)) for step, (loss, slope) in enumerate(zip(losses, slopes, strict=True))]
    header = {"config": {"rule": {"lr": LR}, "estimator": {"eps": 1e-3}, "batch": 64, **config}}
    return Contents(header, [], 0, 0, steps=steps)


def look(step, accuracy, objective, answered=(50, 50), loss=None):
    hits = round(accuracy * 100)
    table = [[hits // 2, answered[1] - hits // 2], [50 - hits // 2, hits // 2]]
    if 0 in answered:
        table = [[answered[0] // 2, answered[1] // 2]] * 2
    figures = {"accuracy": accuracy, "score": accuracy, "objective": objective, "examples": 100}
    loss = objective if loss is None else loss
    return {"kind": "validation", "step": step, **figures, "loss": loss, "confusion": table}


def noisy(first, last, steps=100, spread=0.05):
    draw = random.Random(3)
    return [first + (last - first) * step / steps + draw.gauss(0, spread) for step in range(steps)]


def waves(first, last, steps=100):
    """Losses whose means differ by exactly so much, with a spread that makes it less than a standard error."""
    return [(first if step < steps // 2 else last) + 0.1 * (-1) ** step for step in range(steps)]


def advised_lr(judged):
    """The learning rate that the last line names, as a multiple of the run's; none where it names none."""
    found = re.search(r"(smaller|an) lr(?:, such as| of up to) ([\d.e-]+)", judged.evidence[-1])
    return float(found[2]) / LR if found else None


@pytest.mark.parametrize(
    ("word", "losses", "looks", "slopes"),
    [
        (LEARNING, noisy(0.7, 0.5), [look(0, 0.6, 0.7), look(100, 0.8, 0.5)], None),
        (LEARNING, noisy(0.7, 0.5), [look(0, 0.6, 0.7), look(100, 0.62, 0.6)], None),  # by its losses alone
        (DIVERGING, noisy(0.7, 2.0), [look(0, 0.8, 0.7), look(100, 0.5, 2.0)], None),
        (DIVERGING, noisy(0.7, 0.7), [look(0, 0.6, 0.7), look(50, 0.9, 0.5), look(100, 0.5, 0.7)], None),
        (TOO_SMALL, waves(0.7, 0.7), [look(0, 0.6, 0.7), look(100, 0.6, 0.6999)], None),
        (TOO_SMALL, waves(0.7, 0.65), [look(0, 0.6, 0.7), look(100, 0.6, 0.7)], None),  # by its training loss
        (NO_SIGNAL, waves(0.7, 0.7), [look(0, 0.6, 0.7), look(100, 0.6, 0.7)], None),
        (NO_SIGNAL, waves(0.7, 0.65), [look(0, 0.6, 0.7), look(100, 0.6, 0.72)], None),  # one falls, the other rises
        (NO_SIGNAL, waves(0.4, 0.4), [look(0, 0.6, 0.4), look(100, 0.6, 0.39)], [0.0] * 80 + [5.0] * 20),
    ],
)
def test_the_verdict_fits_the_course(word, losses, looks, slopes):
    judged = verdict(contents(losses, slopes), looks)
    assert judged.word == word, judged.evidence
    assert any(f"{looks[0]['accuracy']:.1%} before" in line for line in judged.evidence)


OBJECTIVES = {  # objective before and at the end, accuracy at the end, training loss: none of them may hide it
    "cross_entropy": lambda grown: (0.7, 0.7 * grown, 0.6, noisy(0.7, 0.7)),
    "accuracy": lambda _: (0.4, 0.4, 0.6, waves(0.4, 0.4)),
    "macro_f1": lambda _: (0.4, 0.38, 0.62, waves(0.4, 0.39)),
    "function": lambda _: (5.0, 1.0, 0.9, noisy(5.0, 1.0)),
    "language_model": lambda grown: (0.7, 0.7 * grown, 0.5, noisy(2.0, 1.9)),
}


@pytest.mark.parametrize("zeros", [0, 80])
@pytest.mark.parametrize("steps", [5, 100])
@pytest.mark.parametrize("grown", [3.0, 5.0, 10.0, 100.0])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_validation_loss_of_three_times_the_first_is_diverging_whatever_else(objective, grown, steps, zeros):
    before, after, accuracy, losses = OBJECTIVES[objective](grown)
    slopes = ([0.0] * zeros + [1.0] * (100 - zeros))[:steps]
    looks = [look(0, 0.6, before, loss=0.7), look(50, 0.7, before, loss=0.6)]
    judged = verdict(
        contents(losses[:steps], slopes, objective={"kind": objective}),
        [*looks, look(100, accuracy, after, loss=0.7 * grown)],
    )
    assert judged.word == DIVERGING
    assert advised_lr(judged) == pytest.approx(0.1)
    assert f"the validation loss went from 0.7 to {0.7 * grown:.4g}" in judged.evidence


def test_a_small_loss_that_triples_by_little_is_not_diverging():
    judged = verdict(contents(waves(0.01, 0.01)), [look(0, 0.99, 0.01), look(100, 0.99, 0.03)])
    assert judged.word != DIVERGING


def test_a_reward_that_falls_is_no_loss_that_tripled():
    looks = [{**look(0, 0.5, -0.5), "accuracy": None}, {**look(100, 0.5, -0.1), "accuracy": None}]
    assert verdict(contents(waves(-0.3, -0.3)), looks).word == NO_SIGNAL


RISES = [0.0, 1e-5, 1e-3, 0.02, 0.1, 1.0]


@pytest.mark.parametrize(
    ("training", "validation", "loss"),
    [rises for rises in itertools.product([-0.02, *RISES], [-1e-4, *RISES], RISES) if max(rises) > 0],
)
def test_a_run_whose_loss_rises_is_never_told_a_larger_lr(training, validation, loss):
    """By its training loss, its objective or its cross-entropy, by much or by next to nothing."""
    losses = waves(0.7, 0.7 + training)
    judged = verdict(contents(losses), [look(0, 0.6, 0.7), look(100, 0.6, 0.7 + validation, loss=0.7 + loss)])
    assert judged.word in (DIVERGING, NO_SIGNAL, TOO_SMALL)
    assert (advised_lr(judged) or 0.1) < 1, judged.evidence


@pytest.mark.parametrize(("training", "validation"), [(0.65, 0.7), (0.7, 0.69), (0.65, 0.69)])
def test_a_run_whose_loss_falls_is_told_to_take_more_steps(training, validation):
    judged = verdict(contents(waves(0.7, training)), [look(0, 0.6, 0.7), look(100, 0.6, validation)])
    assert judged.word == TOO_SMALL
    assert judged.evidence[-1].endswith("try more steps")


@pytest.mark.parametrize("after", [0.7, 0.6999])
def test_a_run_whose_loss_is_flat_is_told_at_most_three_times_the_lr(after):
    judged = verdict(contents(waves(0.7, 0.7)), [look(0, 0.6, 0.7), look(100, 0.6, after)])
    assert judged.word in (TOO_SMALL, NO_SIGNAL)
    assert advised_lr(judged) == pytest.approx(3.0)


def test_a_run_that_stopped_for_numbers_that_are_none_is_diverging():
    line = {"kind": "diverged", "step": 5, "found": "the loss is nan"}
    for steps, looks in ((5, [look(0, 0.6, 0.7)]), (5, []), (0, [])):
        judged = verdict(contents([0.7] * steps), [*looks, line])
        assert judged.word == DIVERGING
        assert judged.evidence[0] == "the run stopped at step 5: the loss is nan"
        assert advised_lr(judged) == pytest.approx(0.1)
    looks = [look(0, 0.6, 0.7), look(100, 0.8, 0.5)]
    assert verdict(contents(noisy(0.7, 0.5)), [*looks, line]).word == LEARNING  # resumed, it came further


def test_an_evaluation_without_numbers_is_none():
    unsound = [{**look(step, 0.6, 0.7), key: None} for step, key in ((0, "score"), (10, "objective"))]
    infinite = {**look(20, 0.6, 0.7), "score": float("nan")}
    assert evaluations([*unsound, infinite, look(30, 0.6, 0.7)]) == [look(30, 0.6, 0.7)]


def test_an_evaluation_that_was_made_again_counts_once():
    looks = [look(100, 0.8, 0.5), look(0, 0.6, 0.7), look(100, 0.8, 0.5)]
    judged = verdict(contents(noisy(0.7, 0.5)), looks)
    assert judged == verdict(contents(noisy(0.7, 0.5)), [looks[1], looks[0]])
    assert judged.word == LEARNING


def test_losses_that_never_change_are_no_change():
    judged = verdict(contents([0.5] * 40, [0.0] * 40), [look(0, 0.5, 0.5), look(40, 0.5, 0.5)])
    assert judged.word == NO_SIGNAL
    assert not any("nan" in line for line in judged.evidence)
    assert "ten times larger" in judged.evidence[-1]


def test_a_few_steps_are_too_early_to_judge():
    judged = verdict(contents([0.7] * 5), [look(0, 0.6, 0.7), look(5, 0.6, 0.7)])
    assert judged.word == TOO_EARLY
    assert "5 steps" in judged.evidence[0]


def test_a_model_that_answers_one_label_to_everything_is_told_of():
    looks = [look(0, 0.5, 0.7), look(100, 0.5, 0.69, answered=(0, 100))]
    start = {"kind": "start", "labels": ["terrible", "great"]}
    evidence = verdict(contents(noisy(0.7, 0.69)), [start, *looks]).evidence
    assert any("'great' to 100% of the validation set" in line for line in evidence)
    balanced = verdict(contents(noisy(0.7, 0.69)), [start, look(0, 0.5, 0.7), look(100, 0.5, 0.69)]).evidence
    assert not any("of the validation set" in line for line in balanced)


def test_ties_come_with_what_helps():
    advice = tie_advice(0.8, 1e-3, 64, 1)
    assert "80% of the slopes are exactly zero" in advice
    assert f"{0.8**4:.0%}" in advice
    slopes = [0.0] * 80 + [5.0] * 20
    judged = verdict(contents(noisy(0.4, 0.4), slopes), [look(0, 0.6, 0.4), look(100, 0.6, 0.4)])
    assert judged.evidence[-1] == advice


# A run that was interrupted is judged as one that never was.


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=24, batch=4, eval_every=4, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2, directions=2),
    )  # fmt: skip


def stopped(config, out, after):
    """Train or go on, up to `after` more steps."""
    asked = iter([False] * after + [True])
    go = resume if RunFolder(out).config.is_file() else lambda path, **more: train(config, path, **more)
    with pytest.raises(Interrupted):
        go(out, stop=lambda: next(asked))


@pytest.mark.parametrize("change", [{}, {"objective": Accuracy()}, {"rule": Sgd(lr=1e-4)}])
@pytest.mark.parametrize("stops", [(1,), (6,), (3, 4, 9)])
def test_a_run_that_was_stopped_and_resumed_is_judged_as_one_that_never_was(stops, change, config, tmp_path):
    config = dataclasses.replace(config, **change)
    whole = train(config, tmp_path / "whole")
    for after in stops:
        stopped(config, tmp_path / "run", after)
    found = resume(tmp_path / "run")
    assert (found.verdict, found.evidence) == (whole.verdict, whole.evidence)
    assert whole.verdict != TOO_EARLY


@pytest.mark.parametrize("seed", range(6))
def test_a_run_whose_metrics_lost_their_end_is_judged_as_one_that_lost_nothing(seed, config, tmp_path):
    """A killed process can lose the end of metrics.jsonl, and half a line with it; the journal it cannot."""
    whole, draw = train(config, tmp_path / "whole"), random.Random(seed)
    for after in (7, 9):
        stopped(config, tmp_path / "run", after)
        path = RunFolder(tmp_path / "run").metrics
        data = path.read_bytes()
        path.write_bytes(data[: draw.randrange(len(data))])
    found = resume(tmp_path / "run")
    assert (found.verdict, found.evidence) == (whole.verdict, whole.evidence)


def test_a_run_whose_metrics_were_deleted_is_judged_the_same(config, tmp_path):
    whole = train(config, tmp_path / "run")
    RunFolder(tmp_path / "run").metrics.unlink()
    again = resume(tmp_path / "run")
    assert (again.verdict, again.evidence) == (whole.verdict, whole.evidence)
    lines = [json.loads(line) for line in RunFolder(tmp_path / "run").metrics.read_text().splitlines()]
    assert {line["step"] for line in lines if line["kind"] == "validation"} == {0, whole.best_step, 24}

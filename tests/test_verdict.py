"""The verdict on a run: it fits the course, is the same however the run was interrupted, and advises no harm."""

import dataclasses
import json
import random
import re

import pytest

from noback import Accuracy, RunConfig, Sgd, TwoSided
from noback.folder import RunFolder
from noback.health import tie_advice
from noback.journal import Contents, Evaluation, StepRecord
from noback.paired import PerExample, in_how_many_cases
from noback.training import Interrupted, resume, train
from noback.verdict import (
    DIVERGING,
    LEARNING,
    NO_SIGNAL,
    OVERFITTING,
    TOO_EARLY,
    TOO_FEW,
    TOO_SMALL,
    evaluations,
    per_example_of,
    verdict,
)

LR = 1e-5


def contents(losses, slopes=None, looks=2, **config):
    """A journal's contents with these losses and slopes, and so many evaluations."""
    slopes = slopes or [1.0] * len(losses)
    steps = [StepRecord(step, loss, (slope,)) for step, (loss, slope) in enumerate(zip(losses, slopes, strict=True))]
    header = {"config": {"rule": {"lr": LR}, "estimator": {"eps": 1e-3}, "batch": 64, **config}}
    evaluated = [Evaluation(step, 0.0, 0.0, chosen=True) for step in range(looks - 1)]
    evaluated.append(Evaluation(len(losses), 0.0, 0.0, chosen=True))
    return Contents(header, [], 0, 0, steps=steps, evaluations=evaluated)


def centred(examples):
    """Noise without a mean."""
    draw = random.Random(5)
    noise = [draw.gauss(0, 1) for _ in range(examples)]
    return [value - sum(noise) / examples for value in noise]


def sheet(right, loss, examples=100, tempered=None, spread=0.1):
    """So many right answers, and losses about a mean; `tempered` none: they are at their best temperature."""
    losses = [loss + spread * noise for noise in centred(examples)]
    at_best = losses if tempered is None else [tempered + spread * noise for noise in centred(examples)]
    return {"credits": [1] * right + [0] * (examples - right), "losses": losses, "tempered": at_best}


def look(step, right, loss, answered=(50, 50), examples=100, **more):
    table = [[right // 2, answered[1] - right // 2], [50 - right // 2, right // 2]]
    if 0 in answered:
        table = [[answered[0] // 2, answered[1] // 2]] * 2
    accuracy = right / examples
    figures = {"accuracy": accuracy, "score": accuracy, "objective": loss, "loss": loss, "examples": examples}
    answers = sheet(right, loss, examples, **more)
    # Losses of a look differ from those of another by more than a shift, so that there is chance in it.
    for name in ("losses", "tempered"):
        width = 0.02 + abs(loss) * 0.3 * (step > 0)
        answers[name] = [value + width * noise for value, noise in zip(answers[name], centred(examples), strict=True)]
    return {"kind": "validation", "step": step, **figures, "confusion": table, **answers}


def sampled(step, loss, examples=100):
    """The sample of the training set."""
    line = look(step, examples // 2, loss, examples=examples)
    return {**{key: line[key] for key in PerExample._fields}, "kind": "training", "step": step}


def advised_lr(judged):
    """The learning rate that the last line names, as a multiple of the run's; none where it names none."""
    found = re.search(r"(smaller|an) lr(?:, such as| of up to) ([\d.e-]+)", judged.evidence[-1])
    return float(found[2]) / LR if found else None


def judged(*lines, steps=100, slopes=None, looks=2):
    return verdict(contents([0.7] * steps, slopes, looks), lines)


def still(line, step, by=0.0):
    """A later evaluation at which nearly nothing changed."""
    moved = {
        name: [value + by * (-1) ** place for place, value in enumerate(line[name])] for name in ("losses", "tempered")
    }
    return {**line, "step": step, **moved}


@pytest.mark.parametrize(
    ("word", "before", "after"),
    [
        (LEARNING, (60, 0.7), (80, 0.5)),
        (LEARNING, (60, 0.7), (62, 0.5)),  # by its loss alone
        (LEARNING, (60, 0.7), (80, 0.9)),  # by its answers alone: it is surer than it should be
        (DIVERGING, (80, 0.7), (50, 0.7)),
        (DIVERGING, (60, 0.7), (60, 1.0)),
        (NO_SIGNAL, (60, 0.7), (60, 0.71)),
    ],
)
def test_the_verdict_fits_the_course(word, before, after):
    found = judged(look(0, *before), look(100, *after))
    assert found.word == word, found.evidence
    assert any(f"{before[0] / 100:.1%} before" in line for line in found.evidence)


def test_point_1_a_few_examples_are_not_called_no_signal_but_too_few():
    """65.6 -> 84.4 % of 32 answers, as a user saw it: the answers alone cannot tell, and nothing says a larger lr."""
    found = judged(look(0, 21, 0.7, examples=32), look(100, 24, 0.66, examples=32))
    assert found.word == TOO_FEW
    assert advised_lr(found) is None


def test_point_1_a_few_examples_tell_by_the_loss_where_the_answers_do_not():
    found = judged(look(0, 21, 0.7, examples=32), look(100, 24, 0.5, examples=32))
    assert found.word == LEARNING
    assert any("too few examples to tell by the answers, but the loss fell by" in line for line in found.evidence)


def test_point_1_two_sets_that_agree_tell_more_than_one():
    lines = [look(0, 21, 0.7, examples=32), look(100, 21, 0.615, examples=32)]
    alone = judged(*lines)
    together = judged(*lines, sampled(0, 0.7, examples=32), sampled(100, 0.615, examples=32))
    assert (alone.word, together.word) == (TOO_FEW, LEARNING)
    assert any("32 training examples" in line for line in together.evidence)


def test_point_1_no_larger_lr_is_advised_while_the_loss_falls():
    first = look(0, 60, 0.7)
    moved = {name: [value - 0.004 for value in first[name]] for name in ("losses", "tempered")}
    found = judged(first, {**first, **moved, "step": 100})
    assert found.word == TOO_SMALL
    assert found.evidence[-1] == "the loss falls: try more steps"


@pytest.mark.parametrize(("by", "times"), [(0.0001, 10), (0.005, 4), (0.015, 1.3), (0.0, 10)])
def test_point_3_a_larger_lr_is_advised_by_how_far_the_model_moved(by, times):
    first = look(0, 60, 0.7)
    found = judged(first, still(first, 100, by))
    assert found.word == TOO_SMALL
    assert advised_lr(found) == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize("rise", [1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("where", [0, 1])
def test_a_run_whose_loss_rises_is_never_told_a_larger_lr(where, rise):
    """On the validation set or on the training sample, by much or by next to nothing."""
    before = [look(0, 60, 0.7), sampled(0, 0.7)]
    after = [{**line, "step": 100} for line in before]
    shifts = [rise * (1 + noise) for noise in centred(100)]
    after[where]["losses"] = [loss + shift for loss, shift in zip(after[where]["losses"], shifts, strict=True)]
    found = judged(*before, *after)
    assert (advised_lr(found) or 0.1) < 1, found.evidence


def test_point_2_a_model_that_is_only_less_sure_has_learned_nothing():
    """On random labels the loss falls as the model becomes less sure; at its best temperature it does not."""
    found = judged(look(0, 50, 1.2, tempered=0.693, spread=0.01), look(100, 52, 0.75, tempered=0.693, spread=0.01))
    assert found.word == TOO_EARLY
    assert any("only because the model is less sure" in line for line in found.evidence)


@pytest.mark.parametrize(("looks", "word"), [(2, LEARNING), (60, TOO_FEW)])
def test_point_2_the_best_of_many_evaluations_has_to_be_the_more_unlikely(looks, word):
    """The same gain at the best evaluation, half gone at the last: convincing as one of one, not as one of many."""
    first = look(0, 100, 0.7, examples=200)
    shaken = [value + 0.1 * noise for value, noise in zip(first["losses"], centred(200), strict=True)]
    gains = [{**first, "credits": [1] * right + [0] * (200 - right), "losses": shaken} for right in (112, 106)]
    records = contents([0.7] * 100, looks=looks)
    records.evaluations[:] = [dataclasses.replace(one, chosen=one.step <= 1) for one in records.evaluations]
    best, last = {**gains[0], "step": 1}, {**gains[1], "step": 100}
    if looks == 2:
        records.evaluations.insert(1, Evaluation(1, 0.0, 0.0, chosen=True))
    assert verdict(records, [first, best, last]).word == word


def test_overfitting_is_told_from_diverging_by_the_training_sample():
    lines = [look(0, 60, 0.7), look(100, 60, 1.0)]
    fell, rose = [sampled(0, 0.7), sampled(100, 0.3)], [sampled(0, 0.7), sampled(100, 1.1)]
    assert judged(*lines, *fell).word == OVERFITTING
    assert judged(*lines, *rose).word == DIVERGING


def test_weights_that_lost_what_the_best_had_are_diverging():
    records = contents([0.7] * 100, looks=3)
    records.evaluations[:] = [Evaluation(0, 0, 0, True), Evaluation(50, 0, 0, True), Evaluation(100, 0, 0)]
    found = verdict(records, [look(0, 60, 0.7), look(50, 90, 0.5), look(100, 58, 0.69)])
    assert found.word == DIVERGING


@pytest.mark.parametrize("zeros", [0, 80])
@pytest.mark.parametrize("steps", [5, 100])
@pytest.mark.parametrize("grown", [3.0, 5.0, 10.0, 100.0])
@pytest.mark.parametrize("right", [40, 60, 90])
def test_point_2_a_validation_loss_of_three_times_the_first_is_diverging_whatever_else(right, grown, steps, zeros):
    slopes = ([0.0] * zeros + [1.0] * (100 - zeros))[:steps]
    lines = [look(0, 60, 0.7), look(steps // 2, 70, 0.6), look(steps, right, 0.7 * grown)]
    found = verdict(contents([0.7] * steps, slopes), lines)
    assert found.word == DIVERGING
    assert advised_lr(found) == pytest.approx(0.1)
    assert f"the validation loss went from 0.7 to {0.7 * grown:.4g}" in found.evidence


def test_a_small_loss_that_triples_by_little_is_not_diverging():
    first = look(0, 99, 0.01)
    assert judged(first, {**still(first, 100), "loss": 0.03}).word != DIVERGING


def test_a_reward_that_falls_is_no_loss_that_tripled():
    first = {**look(0, 50, -0.5), "accuracy": None}
    assert judged(first, {**still(first, 100), "loss": -0.1}).word != DIVERGING


def test_a_reward_that_rises_is_learning():
    rewards = [random.Random(place).random() for place in range(40)]
    lines = [
        {**look(step, 20, -0.5, examples=40), "accuracy": None, "credits": values, "losses": [-one for one in values],
         "tempered": [-one for one in values]}
        for step, values in ((0, rewards), (100, [one + 0.2 + one / 9 for one in rewards]))
    ]  # fmt: skip
    found = judged(*lines)
    assert found.word == LEARNING
    assert "mean validation reward" in found.evidence[0]


def test_lines_of_an_older_noback_are_not_compared():
    older = [
        {key: value for key, value in look(step, 60, 0.7).items() if key not in PerExample._fields} for step in (0, 100)
    ]
    found = judged(*older)
    assert found.word == TOO_EARLY
    assert any("how each example was answered" in line for line in found.evidence)


def test_point_3_a_calibration_that_beats_the_tuned_weights_is_told():
    lines = [look(0, 60, 0.7), look(100, 80, 0.5), {"kind": "zero_shot", "calibrated": 0.689}]
    tested = {"kind": "test", "at": "best", "accuracy": 0.604}
    told = [line for line in judged(*lines, tested).evidence if "content-free" in line]
    assert told == ["a content-free calibration alone gives 68.9% on the test set, more than the best weights' 60.4%"]
    assert not any("content-free" in line for line in judged(*lines, {**tested, "accuracy": 0.7}).evidence)


def test_a_gain_is_counted_from_before_a_readouts_first_fit():
    fitted = [look(0, 80, 0.5), look(100, 80, 0.5)]
    assert judged(*fitted).word != LEARNING
    found = judged({**look(0, 55, 0.7), "kind": "untouched"}, *fitted)
    assert found.word == LEARNING
    assert any("validation accuracy 55.0% before, 80.0% at the best step" in line for line in found.evidence)
    harmed = {**look(0, 55, 0.7), "kind": "untouched", "credits": [1.0]}  # of another sample
    assert judged(harmed, *fitted).word == judged(*fitted).word


def test_what_the_steps_added_to_a_readout_is_told():
    lines = [look(0, 60, 0.7), look(100, 80, 0.5), {"kind": "frozen_readout", "accuracy": 0.689}]
    told = judged(*lines, {"kind": "test", "at": "best", "accuracy": 0.714}).evidence
    expected = (
        "the readout on the untouched model gives 68.9% on the test set, the best weights 71.4%: +2.5 points by the"
    )
    assert any(line.startswith(expected) for line in told)
    assert not any("readout" in line for line in judged(*lines[:2]).evidence)


def test_a_run_that_stopped_for_numbers_that_are_none_is_diverging():
    line = {"kind": "diverged", "step": 5, "found": "the loss is nan"}
    for steps, lines in ((5, [look(0, 60, 0.7)]), (5, []), (0, [])):
        found = verdict(contents([0.7] * steps), [*lines, line])
        assert found.word == DIVERGING
        assert found.evidence[0] == "the run stopped at step 5: the loss is nan"
        assert advised_lr(found) == pytest.approx(0.1)
    lines = [look(0, 60, 0.7), look(100, 80, 0.5)]
    assert judged(*lines, line).word == LEARNING  # resumed, it came further
    at_the_end = {**line, "step": 100}
    assert judged(*lines, at_the_end).word == DIVERGING
    assert judged(lines[0], at_the_end, lines[1]).word == LEARNING  # resumed, it gave numbers there


def test_an_evaluation_without_numbers_is_none():
    unsound = [{**look(step, 60, 0.7), key: None} for step, key in ((0, "score"), (10, "objective"))]
    infinite = {**look(20, 60, 0.7), "score": float("nan")}
    sound = look(30, 60, 0.7)
    assert evaluations([*unsound, infinite, sound]) == [sound]


@pytest.mark.parametrize("broken", [{"credits": [1, None]}, {"losses": []}, {"tempered": [0.5]}])
def test_answers_that_are_not_whole_are_none(broken):
    assert per_example_of(look(0, 60, 0.7)) is not None
    assert per_example_of({**look(0, 60, 0.7), **broken}) is None


def test_an_evaluation_that_was_made_again_counts_once():
    lines = [look(100, 80, 0.5), look(0, 60, 0.7), look(100, 80, 0.5)]
    assert judged(*lines) == judged(lines[1], lines[0])
    assert judged(*lines).word == LEARNING


def test_losses_that_never_change_are_no_change():
    first = look(0, 50, 0.5)
    found = judged(first, still(first, 40), steps=40, slopes=[0.0] * 40)
    assert found.word == NO_SIGNAL
    assert not any("nan" in line for line in found.evidence)
    assert "ten times larger" in found.evidence[-1]


def test_a_few_steps_are_too_early_to_judge():
    found = judged(look(0, 60, 0.7), look(5, 60, 0.7), steps=5)
    assert found.word == TOO_EARLY
    assert "5 steps" in found.evidence[0]


def test_a_model_that_answers_one_label_to_everything_is_told_of():
    lines = [look(0, 50, 0.7), look(100, 50, 0.69, answered=(0, 100))]
    start = {"kind": "start", "labels": ["terrible", "great"]}
    assert any("'great' to 100% of the validation set" in line for line in judged(start, *lines).evidence)
    balanced = judged(start, look(0, 50, 0.7), look(100, 50, 0.69)).evidence
    assert not any("of the validation set" in line for line in balanced)


def test_ties_come_with_what_helps():
    advice = tie_advice(0.8, 1e-3, 64, 1)
    assert "80% of the slopes are exactly zero" in advice
    assert f"{0.8**4:.0%}" in advice
    first = look(0, 60, 0.4)
    assert judged(first, still(first, 100), slopes=[0.0] * 80 + [5.0] * 20).evidence[-1] == advice


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


@pytest.mark.parametrize(
    ("chance", "said"), [(1.0, "100%"), (0.2, "20%"), (0.0131, "1.3%"), (0.0004, "0.04%"), (5e-07, "less than 0.01%")]
)
def test_a_chance_is_said_as_a_percentage(chance, said):
    assert in_how_many_cases(chance) == f"chance alone gives as much in {said} of cases"


def test_the_evidence_says_how_often_chance_alone_gives_as_much():
    evidence = judged(look(0, 50, 0.7, examples=100), look(100, 50, 0.7, examples=100)).evidence
    assert sum("chance alone gives as much in" in line for line in evidence) == 2


def test_point_1_a_run_of_mostly_zero_slopes_whose_loss_fell_is_not_called_no_signal():
    """Accuracy as the objective, 85 % of its slopes zero, validation 66.7 -> 83.3 %, as a user saw it."""
    lines = [look(0, 20, 0.668, examples=30), look(100, 25, 0.6, examples=30)]
    trained = [sampled(0, 0.682, examples=128), sampled(100, 0.532, examples=128)]
    slopes = [0.0] * 85 + [1.0] * 15
    found = judged(*lines, *trained, slopes=slopes)
    assert found.word not in (NO_SIGNAL, DIVERGING)
    assert "exactly zero" in found.evidence[-1]  # what helps is told all the same
    assert (
        judged(look(0, 20, 0.668, examples=30), still(look(0, 20, 0.668, examples=30), 100), slopes=slopes).word
        == NO_SIGNAL
    )

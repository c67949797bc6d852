"""Objectives: what each makes of a batch, and what a user's own function may and may not do."""

import dataclasses
import math

import numpy
import pytest
import torch

from noback import Accuracy, CrossEntropy, Function, InputError, MacroF1, RunConfig, Sgd, TwoSided, resume, train
from noback.config import config_of
from noback.engines import Local
from noback.journal import read_journal
from noback.objectives import METRICS
from noback.tuned import evaluate, tuned_run
from noback.values import Move, Term
from tests.conftest import tiny_model, weights_of

WORDS = ["terrible", "great"]
LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0], [0.5, 0.0]])
GOLD = torch.tensor([0, 1, 1, 1])


def margin(logits, gold):
    """A smooth objective of one's own: minus the margin of the right label."""
    right = logits.gather(1, gold[:, None])[:, 0]
    return (logits.logsumexp(dim=1) - right).mean()


def wrong_words(answers, right):
    """A staircase over texts."""
    assert set(answers) | set(right) <= set(WORDS)
    return sum(one != other for one, other in zip(answers, right, strict=True)) / len(right)


def raises(logits, gold):
    raise KeyError("no such thing")


def not_a_number(logits, gold):
    return float("nan")


def one_number_each(logits, gold):
    return logits.sum(dim=1)


def a_text(logits, gold):
    return "good"


def test_cross_entropy_is_the_mean_over_the_label_words():
    expected = -torch.log_softmax(LOGITS.double(), dim=1)[range(4), GOLD].mean()
    assert CrossEntropy().loss(LOGITS, GOLD, WORDS) == pytest.approx(float(expected), abs=1e-12)


def test_accuracy_counts_wrong_answers():
    assert Accuracy().loss(LOGITS, GOLD, WORDS) == 0.5


def test_macro_f1_is_the_mean_of_the_labels_own_f1():
    # label 0: one hit, three answers, one gold: F1 = 2/4; label 1: one hit, one answer, three gold: F1 = 2/4
    assert MacroF1().loss(LOGITS, GOLD, WORDS) == pytest.approx(0.5)
    all_zero = torch.tensor([[1.0, 0.0]] * 4)
    assert MacroF1().loss(all_zero, GOLD, WORDS) == pytest.approx(1 - (2 / 5) / 2)


def test_macro_f1_leaves_out_a_label_that_never_occurs():
    three = torch.cat([LOGITS, torch.full((4, 1), -9.0)], dim=1)
    assert MacroF1().loss(three, GOLD, [*WORDS, "fine"]) == pytest.approx(MacroF1().loss(LOGITS, GOLD, WORDS))


def test_macro_f1_of_a_batch_is_no_mean_of_its_parts_and_micro_batches_do_not_change_it(small_task):
    parts = [MacroF1().loss(LOGITS[half], GOLD[half], WORDS) for half in (slice(0, 1), slice(1, 4))]
    assert sum(parts) / 2 != pytest.approx(MacroF1().loss(LOGITS, GOLD, WORDS))
    model = tiny_model("roberta")
    batch, points = small_task.batch(0, 8, 0), [Move((Term(5, side * 0.1),)) for side in (1.0, -1.0)]
    losses = []
    for cut in (None, 3):
        engine = Local(model, weights_of(model), small_task.word_ids, micro_batch=cut)
        losses.append([MacroF1().loss(output, batch.gold, WORDS) for output in engine.score(batch, points)])
    assert losses[0] == losses[1]


def test_balanced_accuracy_is_the_mean_of_the_labels_own_accuracy():
    gold = torch.tensor([0, 0, 0, 1, 1, 2])
    answered = torch.tensor([0, 0, 1, 1, 1, 0])
    assert METRICS["balanced_accuracy"](answered, gold) == pytest.approx((2 / 3 + 1 + 0) / 3)


@pytest.mark.parametrize("labels", [2, 3])
def test_a_model_that_answers_one_label_has_no_balanced_accuracy_above_chance_and_no_mcc(labels):
    gold = torch.tensor([label for label in range(labels) for _ in range(label + 1)])
    answered = torch.full_like(gold, labels - 1)
    assert METRICS["balanced_accuracy"](answered, gold) == pytest.approx(1 / labels)
    assert METRICS["mcc"](answered, gold) == 0.0


def test_mcc_is_the_correlation_of_answers_and_labels_of_any_number():
    generator = torch.Generator().manual_seed(3)
    gold, answered = (torch.randint(2, (200,), generator=generator) for _ in range(2))
    expected = float(numpy.corrcoef(gold, answered)[0, 1])
    assert METRICS["mcc"](answered, gold) == pytest.approx(expected)
    three = torch.tensor([0, 1, 2, 2, 1, 0])
    assert METRICS["mcc"](three, three) == 1.0
    # of one-hot vectors: sum of covariances over the root of the product of the sums of variances
    gold, answered = (torch.randint(3, (200,), generator=generator) for _ in range(2))
    one, other = (torch.nn.functional.one_hot(part, 3).double() for part in (gold, answered))
    one, other = one - one.mean(dim=0), other - other.mean(dim=0)
    expected = float((one * other).sum() / ((one**2).sum() * (other**2).sum()).sqrt())
    assert METRICS["mcc"](answered, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("objective", "smooth"),
    [(CrossEntropy(), True), (Accuracy(), False), (MacroF1(), False), (Function(margin, smooth=True), True)],
)
def test_an_objective_says_whether_it_is_smooth(objective, smooth):
    """A small change of every logit changes a smooth one and leaves a staircase."""
    assert objective.smooth is smooth
    moved = LOGITS + torch.tensor([[1e-4, 0.0]])
    assert (objective.loss(moved, GOLD, WORDS) != objective.loss(LOGITS, GOLD, WORDS)) is smooth


def test_a_function_reads_logits_or_texts():
    assert Function(margin).loss(LOGITS, GOLD, WORDS) == pytest.approx(CrossEntropy().loss(LOGITS, GOLD, WORDS))
    assert Function(wrong_words, reads="text").loss(LOGITS, GOLD, WORDS) == 0.5


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises, r"raised KeyError.*no such thing.*test_objectives.py, line \d+"),
        (not_a_number, "returned nan; expected a finite number"),
        (one_number_each, r"returned shape \(4,\); expected one number.*mean"),
        (a_text, "returned str 'good'; expected a number"),
    ],
)
def test_a_function_that_gives_no_number_is_refused_with_its_name(function, said):
    with pytest.raises(InputError, match=f"{function.__name__}.*{said}"):
        Function(function).loss(LOGITS, GOLD, WORDS)


def test_a_function_without_a_name_of_its_own_is_refused():
    with pytest.raises(InputError, match="could not find it"):
        Function(lambda logits, gold: 0.0)


def test_a_function_is_found_by_its_name_in_toml_and_in_the_folder_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "my_costs.py").write_text("def half(logits, gold):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    for entry in ("my_costs:half", {"kind": "function", "function": "my_costs:half"}):
        config = config_of({"objective": entry})
        assert config.objective == Function("my_costs:half")
        assert config.objective.loss(LOGITS, GOLD, WORDS) == 0.5
    assert config_of(config.table()) == config.settled()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_here:f", "cannot be imported: ModuleNotFoundError"),
        ("math:no_such_function", "has no function 'no_such_function'"),
    ],
)
def test_a_function_that_is_not_there_is_refused(name, said):
    with pytest.raises(InputError, match=said):
        Function(name).loss(LOGITS, GOLD, WORDS)


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=6, batch=4, rule=Sgd(lr=1e-2), estimator=TwoSided(eps=1e-2)
    )


def test_a_run_lowers_a_function_of_ones_own(config, tmp_path):
    """The same number by another road: the journal equals that of cross-entropy to rounding."""
    ours = train(dataclasses.replace(config, objective=Function(margin, smooth=True)), tmp_path / "ours")
    theirs = train(config, tmp_path / "theirs")
    steps = [read_journal(tmp_path / name / "journal").steps for name in ("ours", "theirs")]
    for mine, other in zip(*steps, strict=True):
        assert mine.slopes[0] == pytest.approx(other.slopes[0], abs=2e-3)
    assert (ours.objective, theirs.objective) == ("function", "cross_entropy")


def test_a_run_whose_function_fails_midway_loses_nothing(config, tmp_path, monkeypatch):
    """Mended and resumed, it ends on the same bits as one that never failed."""
    undisturbed = train(dataclasses.replace(config, objective=Function(margin)), tmp_path / "undisturbed")
    calls = iter(range(1000))

    def fails_later(logits, gold, sound=margin):
        if next(calls) > 8:
            raise ValueError("out of luck")
        return sound(logits, gold)

    with monkeypatch.context() as patch:
        patch.setitem(globals(), "margin", fails_later)
        with pytest.raises(InputError, match="out of luck"):
            train(dataclasses.replace(config, objective=Function("tests.test_objectives:margin")), tmp_path / "run")
    assert 0 < len(read_journal(tmp_path / "run" / "journal").steps) < 6
    assert resume(tmp_path / "run", trust=True).final_weights == undisturbed.final_weights


def test_evaluating_and_replaying_never_call_the_function(config, tmp_path, monkeypatch):
    result = train(dataclasses.replace(config, objective=Function(margin)), tmp_path / "run")
    monkeypatch.delitem(globals(), "margin")
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights
    score, _ = evaluate(run)
    assert score.accuracy == result.final
    assert math.isfinite(score.loss)


@pytest.mark.parametrize("objective", [Accuracy(), MacroF1()], ids=lambda one: one.kind)
def test_slopes_of_a_staircase_are_whole_steps_of_it(config, tmp_path, objective):
    train(dataclasses.replace(config, objective=objective, steps=10), tmp_path / "run")
    slopes = [record.slopes[0] for record in read_journal(tmp_path / "run" / "journal").steps]
    assert any(slope == 0.0 for slope in slopes)
    if objective == Accuracy():
        assert all(math.isclose(slope * 2e-2 * 4, round(slope * 2e-2 * 4), abs_tol=1e-4) for slope in slopes)


def quits(logits, gold):
    raise SystemExit(0)


def prints(logits, gold):
    print("a function may talk")
    return logits.sum()


def writes(logits, gold):
    logits.mul_(-1)
    return float(logits.numpy().sum())


def test_a_function_that_exits_is_told_of():
    with pytest.raises(InputError, match="raised SystemExit"):
        Function(quits).loss(LOGITS, GOLD, WORDS)


def test_what_a_function_prints_goes_to_stderr(capsys):
    Function(prints).loss(LOGITS, GOLD, WORDS)
    assert capsys.readouterr().out == ""


def test_a_function_may_write_into_what_it_is_given():
    before = LOGITS.clone()
    with torch.inference_mode():
        inner = LOGITS * 1
    for logits in (LOGITS, inner):
        assert Function(writes).loss(logits, GOLD, WORDS) == pytest.approx(-float(before.sum()))
        assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [2, True, torch.tensor([[2.0]]), torch.tensor(2), numpy.array([2.0])])
def test_any_one_number_will_do(value, monkeypatch):
    monkeypatch.setitem(globals(), "margin", lambda logits, gold: value)
    assert Function("tests.test_objectives:margin").loss(LOGITS, GOLD, WORDS) in (1.0, 2.0)

"""Numbers mean what their words say: sizes of slopes, what eps does, ties, and the size of a step."""

from dataclasses import replace

import pytest

from noback import Accuracy, AdaptTies, RunConfig, Sgd, TwoSided, tuned_run
from noback.cli.compare import DESCRIPTION as COMPARE
from noback.cli.epsilon import DESCRIPTION as EPSILON
from noback.folder import RunFolder
from noback.health import slope_figures, tie_advice
from noback.journal import EpsChange, read_journal
from noback.measuring_eps import Probe, _for_smooth
from noback.training import Interrupted, resume, train
from noback.verdict import TOO_SMALL, verdict
from tests.test_verdict import contents, judged, look, still


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(model=str(tiny_folder), data=str(data_folder), steps=24, batch=4, eval_every=12)


# The mean size of slopes


def test_the_mean_size_of_slopes_counts_zeros_and_the_words_say_so():
    assert slope_figures([0.0, 0.0, 0.0, 4.0])["mean_abs_slope"] == 1.0
    first = look(0, 60, 0.7)
    found = judged(first, still(first, 100), slopes=[0.0] * 75 + [4.0] * 25)
    assert any("75% of 100 slopes are exactly zero; the mean size of all is 1," in line for line in found.evidence)
    for description in (COMPARE, EPSILON):
        assert "zeros count" in description
        assert "of the others" not in description


# What eps does


def probes(eps, slopes):
    return [Probe(slope * eps, 0.0, -slope * eps, slope) for slope in slopes]


TRUE, NOISE = [1.0, -2.0, 3.0, 0.5], [2.0, 2.0, -1.0, 3.0]


@pytest.mark.parametrize(
    ("noisy", "said", "unsaid"),
    [
        ((), "from the smallest eps tried to the largest", "lost"),
        ((1e-5,), "up to the largest eps tried, and below 0.0001 they are lost to rounding", "curvature"),
        ((1e-2,), "down to the smallest eps tried, and above 0.001 they are lost to curvature", "rounding"),
        ((1e-5, 1e-2), "below 0.0001 they are lost to rounding and above 0.001 they are lost to curvature", "tried"),
    ],
)
def test_rounding_and_curvature_are_named_only_where_they_were_seen(noisy, said, unsaid):
    ladder = {eps: probes(eps, NOISE if eps in noisy else TRUE) for eps in (1e-5, 1e-4, 1e-3, 1e-2)}
    reason = _for_smooth(ladder, sorted(ladder))["reason"]
    assert said in reason
    assert unsaid not in reason


# Ties


@pytest.fixture
def dead(config):
    """A staircase at an eps at which no answer flips."""
    return replace(
        config, objective=Accuracy(), estimator=TwoSided(eps=1e-6), adapt_ties=AdaptTies(largest=1.0), rule=Sgd(lr=1e-3)
    )


def test_a_dead_start_is_left_within_a_few_steps(dead, tmp_path):
    train(replace(dead, steps=40), tmp_path / "run")
    found = read_journal(tmp_path / "run" / "journal")
    assert [change.step for change in found.eps_changes[:3]] == [4, 8, 12]
    assert [change.eps for change in found.eps_changes[:3]] == pytest.approx([1e-5, 1e-4, 1e-3])
    assert any(slope for record in found.steps for slope in record.slopes)


def test_once_a_slope_was_not_zero_eps_is_raised_by_whole_windows_only():
    ties, zero = AdaptTies(largest=1.0), (0.0,)
    assert ties.next_eps(1e-4, [zero] * 3, dead=True) == 1e-4
    assert ties.next_eps(1e-4, [zero] * 4, dead=True) == pytest.approx(1e-3)
    assert ties.next_eps(0.5, [zero] * 4, dead=True) == 1.0
    assert ties.next_eps(1e-4, [zero] * 15) == 1e-4
    assert ties.next_eps(1e-4, [zero] * 16) == pytest.approx(2e-4)


@pytest.mark.parametrize("stopped_after", [3, 4, 7, 13])
def test_a_run_that_leaves_a_dead_start_resumes_and_replays_to_the_same_bits(dead, tmp_path, stopped_after):
    undisturbed = train(dead, tmp_path / "undisturbed")
    asked = iter([False] * stopped_after + [True])
    with pytest.raises(Interrupted):
        train(dead, tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == undisturbed.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "undisturbed" / "journal").read_bytes()
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == undisturbed.final_weights != replayed.base


def test_a_journal_whose_eps_grew_by_another_rule_replays_to_the_same_bits(dead, tmp_path, monkeypatch):
    """What an earlier version recorded: eps doubled by windows of 16 steps alone."""
    after = AdaptTies.next_eps
    monkeypatch.setattr(AdaptTies, "next_eps", lambda self, eps, slopes, dead: after(self, eps, slopes))
    result = train(replace(dead, steps=40, estimator=TwoSided(eps=2e-2)), tmp_path / "run")
    monkeypatch.undo()
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights


@pytest.mark.parametrize(("eps", "said"), [(1e-2, "as far as it may"), (1e-3, "up to 0.01: begin with a larger --eps")])
def test_what_is_on_already_is_never_advised(eps, said):
    advice = tie_advice(0.8, eps, 64, 1, adapting=1e-2)
    assert said in advice
    assert "--adapt-ties" not in advice
    first = look(0, 60, 0.4)
    known = contents([0.7] * 100, [0.0] * 80 + [5.0] * 20, adapt_ties={"kind": "raise_eps", "largest": 1e-2})
    known.eps_changes.append(EpsChange(3, eps))
    assert verdict(known, [first, still(first, 100)]).evidence[-1] == tie_advice(0.8, eps, 64, 1, adapting=1e-2)


# The size of a step


def test_a_step_that_is_too_small_is_told_with_its_size(config, tmp_path):
    result = train(replace(config, rule=Sgd(lr=1e-9)), tmp_path / "run")
    evidence = RunFolder(tmp_path / "run").read_metrics()[-1]["evidence"]
    assert result.verdict == TOO_SMALL
    assert any("24 steps changed an example's loss by" in line for line in evidence)
    assert any("a step moves a weight by about" in line and "lr 1e-09 times" in line for line in evidence)
    assert not any("the usual lr" in line for line in evidence)


@pytest.mark.parametrize(("model", "said"), [("another", True), ("mini", False)])
def test_a_usual_lr_that_does_not_carry_over_to_another_model_is_said(model, said):
    first = look(0, 51, 0.7)
    kinds = {"adapter": {"kind": "lora"}, "rule": {"kind": "sgd", "lr": 5e-4}, "model": model, "dtype": "float32"}
    known = contents([0.7] * 40, [0.01] * 40, **kinds)
    found = verdict(known, [first, still(first, 40, by=0.001)])
    assert found.word == TOO_SMALL
    assert any("lr 0.0005 times the mean size of a slope, 0.01" in line for line in found.evidence)
    assert any("the usual lr was measured on" in line for line in found.evidence) is said
    assert found.evidence[-1] == "try more steps, or an lr of up to 0.005"

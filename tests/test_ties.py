"""Ties: how eps grows with them, that the journal says so, and that a run warns of them."""

import dataclasses

import pytest

from noback import Accuracy, AdaptTies, CrossEntropy, InputError, RunConfig, Sgd, TwoSided, tuned_run
from noback.journal import EpsChange, Evaluation, Journal, StepRecord, read_journal
from noback.training import Interrupted, resume, train
from noback.watching import Silent


class Listening(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def config(tiny_folder, data_folder):
    """A staircase whose slopes are nearly all zero: eps is far too small to flip an answer."""
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=30, batch=4, eval_every=10, rule=Sgd(lr=1e-6),
        objective=Accuracy(), estimator=TwoSided(eps=1e-7),
    )  # fmt: skip


ADAPT = AdaptTies(target=0.2, largest=1e-5, factor=4.0, window=5)


def test_eps_is_raised_only_by_a_full_window_of_too_many_zeros():
    zero, slope = (0.0,), (1.5,)
    assert ADAPT.next_eps(1e-7, [zero] * 4) == 1e-7
    assert ADAPT.next_eps(1e-7, [zero] * 5) == pytest.approx(4e-7)
    assert ADAPT.next_eps(1e-7, [zero, slope, slope, slope, slope]) == 1e-7  # a fifth is small enough
    assert ADAPT.next_eps(1e-7, [zero, zero, slope, slope, slope]) == pytest.approx(4e-7)
    assert ADAPT.next_eps(5e-6, [zero] * 5) == pytest.approx(1e-5)  # never above the largest
    assert ADAPT.next_eps(1e-5, [zero] * 5) == 1e-5


def test_eps_grows_within_its_bounds_and_the_journal_says_when(config, tmp_path):
    estimator, ties = TwoSided(eps=1e-7), ADAPT
    train(dataclasses.replace(config, estimator=estimator, adapt_ties=ties), tmp_path / "run")
    changes = read_journal(tmp_path / "run" / "journal").eps_changes
    assert [change.step for change in changes] == [4, 8]  # tenfold, while every slope is zero
    assert [change.eps for change in changes] == pytest.approx([1e-6, 1e-5])


def test_slopes_are_measured_at_the_eps_that_the_journal_names(config, tmp_path):
    """A slope of a staircase is a whole number of flips over 2 eps batch."""
    estimator, ties = TwoSided(eps=1e-4), AdaptTies(target=0.0, largest=1.0, factor=8.0, window=3)
    train(dataclasses.replace(config, estimator=estimator, adapt_ties=ties), tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    seen = 0
    for record in contents.steps:
        eps = next((change.eps for change in reversed(contents.eps_changes) if change.step <= record.step), 1e-4)
        flips = record.slopes[0] * 2 * eps * 4
        assert flips == pytest.approx(round(flips), abs=1e-3)
        seen += flips != 0
    assert seen
    assert contents.eps_changes


@pytest.mark.parametrize("stopped_after", [4, 5, 9, 12])
def test_a_run_whose_eps_grows_resumes_and_replays_to_the_same_bits(config, tmp_path, stopped_after):
    estimator, ties = TwoSided(eps=1e-4), AdaptTies(target=0.0, largest=1.0, factor=8.0, window=3)
    config = dataclasses.replace(config, estimator=estimator, adapt_ties=ties, rule=Sgd(lr=1e-3))
    undisturbed = train(config, tmp_path / "undisturbed")
    asked = iter([False] * stopped_after + [True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == undisturbed.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "undisturbed" / "journal").read_bytes()
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == undisturbed.final_weights != replayed.base


def test_the_journal_keeps_every_kind_of_record(tmp_path):
    journal = Journal.create(tmp_path / "journal", {"directions": 3})
    records = [StepRecord(0, 0.5, (1.0, 0.0, -2.0)), EpsChange(1, 0.25), Evaluation(1, 0.75, 0.5)]
    for record in records:
        journal.append(record)
    contents = read_journal(tmp_path / "journal")
    assert [*contents.steps, *contents.eps_changes, *contents.evaluations] == records


def test_a_run_warns_once_when_zero_slopes_dominate_and_says_what_helps(config, tmp_path):
    listening = Listening()
    train(config, tmp_path / "run", watcher=listening)
    (warning,) = [note for note in listening.notes if note.startswith("warning")]
    for said in ("100% of the slopes are exactly zero at eps 1e-07, batch 4", "--adapt-ties", "cross_entropy"):
        assert said in warning


def test_a_smooth_objective_gets_no_warning(config, tmp_path):
    listening = Listening()
    smooth = dataclasses.replace(config, objective=CrossEntropy(), estimator=TwoSided(eps=1e-3))
    train(smooth, tmp_path / "run", watcher=listening)
    assert not [note for note in listening.notes if "zero" in note]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": 1.0}, "adapt_ties.target"),
        ({"factor": 1.0}, "adapt_ties.factor"),
        ({"window": 0}, "adapt_ties.window"),
        ({"largest": -1.0}, "adapt_ties.largest"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        AdaptTies(**options)


def test_an_eps_above_its_own_bound_is_refused():
    with pytest.raises(InputError, match=r"adapt_ties.largest is 0.01; expected eps, 0.1, or more"):
        RunConfig(estimator=TwoSided(eps=0.1), adapt_ties=AdaptTies(largest=0.01))

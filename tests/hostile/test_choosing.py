"""Points 2, 5 and 6: the best weights follow from the journal and the weights, whatever became of the metrics."""

import json
import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import pytest

import noback.training
from noback import RunConfig, Sgd, TwoSided
from noback.errors import DamagedError
from noback.folder import RunFolder
from noback.journal import Evaluation, Journal, Seal, StepRecord, read_journal
from noback.paired import PerExample, one_sided_mcnemar
from noback.training import Interrupted, resume, train
from noback.values import Score
from noback.verdict import per_example_of
from tests.hostile.injecting import facts

STEPS, EVERY = 24, 2


@pytest.fixture(scope="module")
def config(tiny_folder, tmp_path_factory):
    """A run that chooses some of its evaluations and not others."""
    from tests.hostile.fuzz import made_data

    data = made_data(tmp_path_factory.mktemp("choosing") / "data")
    method = {"rule": Sgd(lr=3e-2), "estimator": TwoSided(eps=1e-2)}
    return RunConfig(model=str(tiny_folder), data=str(data), steps=STEPS, batch=2, eval_every=EVERY, **method)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The same run, never disturbed."""
    out = tmp_path_factory.mktemp("choosing") / "whole"
    train(config, out)
    return out


def test_the_run_of_these_tests_chooses_some_of_its_evaluations_and_not_others(whole):
    chosen = [one.chosen for one in read_journal(whole / "journal").evaluations]
    assert chosen[0]
    assert 1 < sum(chosen) < len(chosen)
    assert not all(chosen[5:])


def stopped_after(config, out, steps):
    asked = iter([False] * steps + [True])
    with pytest.raises(Interrupted):
        train(config, out, stop=lambda: next(asked))


def killed_before_its_line(config, out, step):
    """Begin or go on, and die for real when an evaluation is in the journal and its line is not yet written."""
    tell = noback.training._tell

    def die(run, at, *rest):
        if at == step and step in {one.step for one in read_journal(out / "journal").evaluations}:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(run, at, *rest)

    noback.training._tell = die
    resume(out) if RunFolder(out).config.is_file() else train(config, out)


def test_a_run_killed_between_each_record_and_its_line_chooses_the_same_weights(config, whole, tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["noback.training", "tests.hostile.test_choosing"])
    out, kills = tmp_path / "run", 0
    for step in range(0, STEPS + 1, EVERY):
        child = processes.Process(target=killed_before_its_line, args=(config, out, step))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        contents = read_journal(out / "journal")
        assert contents.evaluations[-1].step == step
        assert step not in {line.get("step") for line in RunFolder(out).read_metrics() if line["kind"] == "validation"}
        kills += 1
    assert kills == STEPS // EVERY + 1
    resume(out)
    assert facts(out) == facts(whole)


def changed(out, change):
    """Each line of metrics as a stranger's function makes it; None: the line is gone."""
    path = RunFolder(out).metrics
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


def every(**values):
    """A change of all lines of evaluations."""
    return lambda line: {**line, **values} if line["kind"] in ("validation", "training") else line


def worse(line):
    if line["kind"] != "validation":
        return line
    return {**line, "loss": 99.0, "score": 0.0, "credits": [0] * 16, "losses": [99.0] * 16, "tempered": [99.0] * 16}


def swapped(line):
    """Other examples are right; the score and the loss are what they were."""
    if line["kind"] != "validation":
        return line
    return {**line, **{name: line[name][::-1] for name in ("credits", "losses", "tempered")}}


CHANGES = {
    "all are gone": lambda line: None,
    "evaluations are gone": lambda line: None if line["kind"] == "validation" else line,
    "worse": worse,
    "other examples are right": swapped,
    "no lists": every(credits=None, losses=None, tempered=None),
    "empty": every(credits=[], losses=[], tempered=[]),
    "other length": every(credits=[1, 0, 1], losses=[0.1, 0.2, 0.3], tempered=[0.1, 0.2, 0.3]),
    "unequal": every(credits=[1, 0, 1]),
    "long": every(credits=[1] * 200_000, losses=[0.5] * 200_000, tempered=[0.5] * 200_000),
    "nan": every(credits=[float("nan")] * 16, losses=[float("inf")] * 16, tempered=[float("-inf")] * 16),
    "too large to square": every(losses=[1e300] * 16),
    "too large for a number": every(losses=[10**400] * 16, seconds=10**400, loss=10**400),
    "texts": every(credits=["1"] * 16, losses="losses", tempered={"0": 1}),
    "truth values": every(credits=[True] * 16, losses=[False] * 16, tempered=[True] * 16),
    "no step": lambda line: {key: value for key, value in line.items() if key != "step"},
    "ragged": every(confusion=[[1], [2, 3, 4], []]),
    "negative": every(step=-1),
    "later than the journal": every(step=10**9),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_run_whose_metrics_were_changed_chooses_the_same_weights(config, whole, tmp_path, how):
    out = tmp_path / "run"
    stopped_after(config, out, 11)
    changed(out, CHANGES[how])
    resume(out)
    assert (out / "journal").read_bytes() == (whole / "journal").read_bytes()
    assert facts(out)[1:3] == facts(whole)[1:3]


@pytest.mark.parametrize("how", CHANGES)
def test_lines_of_metrics_of_any_kind_are_judged_and_reported_without_a_traceback(whole, tmp_path, noback, how):
    import shutil

    out = tmp_path / "run"
    shutil.copytree(whole, out)
    changed(out, CHANGES[how])
    code, _, err = noback("report", out)
    assert code == 0, err
    assert (out / "journal").read_bytes() == (whole / "journal").read_bytes()


HEADER = {"directions": 1, "figures": [], "config": {"steps": 2}}
STEP = [StepRecord(step, 0.5, (1.0,)) for step in range(2)]


def journal_of(path, *records):
    journal = Journal.create(path, HEADER)
    for record in records:
        journal.append(record)
    return path


def test_a_journal_without_choices_names_the_highest_score(tmp_path):
    """Format 3 before choices were kept."""
    looks = [Evaluation(0, 0.5, 0.75), Evaluation(1, 0.875, 0.625), Evaluation(2, 0.75, 0.125)]
    path = journal_of(tmp_path / "journal", looks[0], STEP[0], looks[1], STEP[1], looks[2], Seal(2))
    assert read_journal(path).best() == looks[1]


def test_a_journal_with_choices_names_the_last_one(tmp_path):
    looks = [Evaluation(0, 0.5, 0.75, True), Evaluation(1, 0.375, 0.625, True), Evaluation(2, 0.75, 0.125)]
    path = journal_of(tmp_path / "journal", looks[0], STEP[0], looks[1], STEP[1], looks[2], Seal(2))
    assert read_journal(path).best() == looks[1]


def test_a_journal_that_begins_without_a_choice_and_makes_one_later_is_refused(tmp_path):
    path = journal_of(tmp_path / "journal", Evaluation(0, 0.5, 0.7), STEP[0], Evaluation(1, 0.4, 0.6, True))
    with pytest.raises(DamagedError, match=r"record 2 .* is an evaluation at step 1, which cannot stand there"):
        read_journal(path)


@pytest.mark.parametrize(("steps", "eval_every"), [(250, None), (20_000, 50), (20_000, 10)])
def test_the_lines_of_a_run_have_a_bound_whatever_the_size_of_its_validation_set(tmp_path, steps, eval_every):
    """100,000 examples at each evaluation."""
    folder = RunFolder(tmp_path)
    run = SimpleNamespace(folder=folder, config=RunConfig(steps=steps, eval_every=eval_every), is_recorded=True)
    losses = [round(0.1 + place / 1e6, 5) for place in range(100_000)]
    answered = PerExample([float(place % 2) for place in range(100_000)], losses, losses)
    noback.training._tell(run, 0, 0.0, Score(0.5, 0.5, 0.7, 0.7, 100_000, [[1, 2], [3, 4]]), answered)
    evaluations = steps // run.config.steps_between_evaluations + 1
    assert folder.metrics.stat().st_size * evaluations < 10_000_000
    kept = per_example_of(folder.read_metrics()[0])
    assert kept == answered.sampled(len(kept.credits))
    assert len(kept.credits) >= 95


def test_the_paired_test_of_a_hundred_thousand_answers_is_exact_and_takes_a_moment():
    began = time.monotonic()
    assert 0.501 < one_sided_mcnemar(50_000, 50_000) < 0.502
    assert one_sided_mcnemar(50_600, 49_400) == pytest.approx(7.4e-5, rel=0.02)
    assert time.monotonic() - began < 30  # it was hours
    assert [one_sided_mcnemar(3, 1), one_sided_mcnemar(0, 0), one_sided_mcnemar(0, 4)] == [5 / 16, 1.0, 1.0]

"""Point 7: a run made longer is what a longer run would have been; patience stops a run early."""

import dataclasses
import json
import tomllib

import pytest

from noback import extending, journal
from noback.config import config_of
from noback.errors import InputError
from noback.folder import RunFolder
from noback.journal import Evaluation, read_journal
from noback.reporting.reading import read_run
from noback.rules import Momentum, Sgd
from noback.training import Interrupted, resume, train


def records(path):
    found = read_journal(path / "journal")
    return found.steps, found.evaluations, found.eps_changes, found.sealed


class Killed(BaseException):
    """As a kill: nothing catches it."""


@pytest.mark.parametrize("rule", [Sgd(), Momentum(window=3)])
def test_a_run_of_4_made_8_is_a_run_of_8(rule, small, tmp_path):
    train(small(steps=4, rule=rule, eval_every=2), tmp_path / "longer")
    longer = resume(tmp_path / "longer", steps=8)
    whole = train(small(steps=8, rule=rule, eval_every=2), tmp_path / "whole")
    assert records(tmp_path / "longer") == records(tmp_path / "whole")
    assert (longer.final_weights, longer.weights, longer.best_step) == (
        whole.final_weights,
        whole.weights,
        whole.best_step,
    )
    assert (longer.steps, longer.verdict, longer.evidence) == (whole.steps, whole.verdict, whole.evidence)
    assert (tmp_path / "longer" / "run.toml").read_text() == (tmp_path / "whole" / "run.toml").read_text()


def test_a_longer_run_whose_lines_hold_fewer_answers_is_judged_as_one_from_the_start(small, tmp_path, monkeypatch):
    monkeypatch.setattr("noback.training._KEPT", 40)
    monkeypatch.setattr("noback.training._SAMPLE", 4)
    train(small(steps=4, eval_every=2), tmp_path / "longer")
    longer = resume(tmp_path / "longer", steps=24)
    whole = train(small(steps=24, eval_every=2), tmp_path / "whole")
    assert (longer.verdict, longer.evidence) == (whole.verdict, whole.evidence)
    lines = [RunFolder(tmp_path / name).read_metrics() for name in ("longer", "whole")]
    before, after = ({len(line["credits"]) for line in each if line["kind"] == "validation"} for each in lines)
    assert (len(before), len(after)) == (2, 1)  # the shorter run's lines held more


def test_evaluations_stay_as_far_apart_and_the_one_at_the_old_end_stays(small, tmp_path):
    train(small(steps=25), tmp_path / "run")  # every 2 steps: a tenth of the run
    resume(tmp_path / "run", steps=30)
    assert [one.step for one in read_journal(tmp_path / "run" / "journal").evaluations] == sorted(
        [*range(0, 31, 2), 25]
    )


def test_a_run_that_was_stopped_can_be_made_longer_too(small, tmp_path):
    steps = iter([False, False, False, True])
    with pytest.raises(Interrupted):
        train(small(steps=4, eval_every=2), tmp_path / "longer", stop=lambda: next(steps))
    resume(tmp_path / "longer", steps=6)
    train(small(steps=6, eval_every=2), tmp_path / "whole")
    assert records(tmp_path / "longer") == records(tmp_path / "whole")


@pytest.mark.parametrize("place", ["remove_snapshots", "rewrite", "replace", "write_whole", "settled"])
def test_killed_at_any_point_of_it_a_run_goes_on_to_the_same_end(place, small, tmp_path, monkeypatch):
    train(small(steps=4, eval_every=2), tmp_path / "longer")
    before = records(tmp_path / "longer")

    def die(*_arguments, **_options):
        raise Killed

    with monkeypatch.context() as patch:
        if place == "replace":  # the new journal is written and has not taken the old one's place
            patch.setattr(journal.os, "replace", die)
        elif place == "settled":
            patch.setattr("noback.training._loop", die)
        else:
            patch.setattr(extending, place, die)
        with pytest.raises(Killed):
            resume(tmp_path / "longer", steps=8)
    after = records(tmp_path / "longer")
    assert after[:3] == before[:3]
    is_longer = not after[3]
    assert is_longer == (place in ("write_whole", "settled"))
    assert read_run(tmp_path / "longer", "longer").state == ("stopped" if is_longer else "finished")
    resume(tmp_path / "longer", **({} if is_longer else {"steps": 8}))  # once it is longer, plain resume knows it
    train(small(steps=8, eval_every=2), tmp_path / "whole")
    assert records(tmp_path / "longer") == records(tmp_path / "whole")
    assert config_of(tomllib.loads((tmp_path / "longer" / "run.toml").read_text())).steps == 8
    assert not list((tmp_path / "longer").glob("*.new"))


def test_the_command_given_again_goes_on_and_can_make_it_longer_once_more(small, tmp_path, noback):
    train(small(steps=2, eval_every=2), tmp_path / "run")
    for steps in (4, 4, 6):
        code, out, err = noback("resume", tmp_path / "run", "--steps", steps, "--json")
        assert (code, json.loads(out)["steps"]) == (0, steps), err
    header = read_journal(tmp_path / "run" / "journal").header
    assert (header["extended"], header["config"]["steps"]) == ([2, 4], 6)
    assert header["config_digest"] == config_of(header["config"]).digest()


def test_what_cannot_be_made_longer_is_refused_and_left_as_it_is(small, tmp_path, noback, data_folder):
    train(small(rule=Sgd(schedule="linear")), tmp_path / "linear")
    train(small(), tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.glob("*/journal")}

    def refused(run, steps):
        code, out, err = noback("resume", tmp_path / run, "--steps", steps)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "train anew with --steps 8" in refused("linear", 8)
    assert "a run can only be made longer" in refused("run", 3)
    assert "expected a whole number above zero" in refused("run", "many")
    (data_folder / "train.jsonl").write_text((data_folder / "validation.jsonl").read_text().replace("film", "book"))
    assert "the data or the task file has changed" in refused("run", 8)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/journal")} == before
    assert read_run(tmp_path / "run", "run").state == "finished"


@pytest.fixture
def never_better(monkeypatch):
    """No evaluation after the first has better weights."""
    monkeypatch.setattr("noback.training.is_better", lambda _found, _best: False)


@pytest.mark.usefixtures("never_better")
def test_patience_stops_a_run_after_so_many_evaluations_without_better_weights(small, tmp_path, noback):
    result = train(small(steps=20, eval_every=2, patience=3), tmp_path / "run")
    assert (result.steps, result.best_step, result.stopped_early) == (6, 0, True)
    contents = read_journal(tmp_path / "run" / "journal")
    assert (contents.sealed, contents.stopped_early, contents.warning()) == (True, True, None)
    assert [one.step for one in contents.evaluations] == [0, 2, 4, 6]
    code, out, _ = noback("report", tmp_path / "run", "--markdown")
    assert (code, "stopped early at step 6 of 20: 3 evaluations in a row" in out) == (0, True)
    assert "--patience 3" in out
    code, _, err = noback("resume", tmp_path / "run", "--steps", 40)
    assert (code, "train anew with a larger --patience" in err) == (2, True)
    code, out, err = noback("resume", tmp_path / "run")
    assert (code, "stopped early at step 6" in out) == (0, True)


@pytest.mark.usefixtures("never_better")
@pytest.mark.parametrize("calls", range(1, 7))
def test_a_run_with_patience_that_is_interrupted_stops_at_the_same_step(calls, small, tmp_path):
    config = small(steps=20, eval_every=2, patience=2)
    whole = train(config, tmp_path / "whole")
    asked = iter([False] * (calls - 1) + [True])
    try:
        train(config, tmp_path / "parts", stop=lambda: next(asked))
    except Interrupted:
        resume(tmp_path / "parts")
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert whole.steps == 4


def test_better_weights_begin_the_count_anew(small, tmp_path):
    found = read_journal_with([True, False, False, True, False], patience=3)
    assert not found.stopped_early
    assert read_journal_with([True, False, False, True, False, False, False], patience=3).stopped_early
    assert not read_journal_with([True, False, False, False], patience=None).stopped_early


def read_journal_with(chosen, patience):
    config = {"steps": 1000} | ({} if patience is None else {"patience": patience})
    contents = journal.Contents({"config": config, "format": 3}, [b""], 0, 0)
    for step, each in enumerate(chosen):
        contents.add(Evaluation(step, 0.5, 0.5, each), b"")
    return contents


def test_without_patience_a_configuration_is_recorded_as_before(small):
    assert "patience" not in small().recorded()
    assert dataclasses.replace(small(), patience=2).recorded()["patience"] == 2
    with pytest.raises(InputError, match="patience is 0"):
        small(patience=0)


def test_the_folder_holds_the_old_journal_until_the_new_one_is_whole(small, tmp_path):
    train(small(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    header = read_journal(folder.journal).header
    (tmp_path / "run" / "journal.new").mkdir()  # what stands in the way of the new file
    with pytest.raises(Exception, match="cannot write"):
        journal.rewrite(folder.journal, header)
    assert read_journal(folder.journal).sealed


def test_a_run_that_has_ended_says_so_and_how_to_make_it_longer(small, tmp_path, noback):
    train(small(steps=2), tmp_path / "run")
    code, _, err = noback("resume", tmp_path / "run")
    assert code == 0
    assert "the run has taken its 2 steps; resume --steps N makes it longer" in " ".join(err.split())
    assert "going on" not in err

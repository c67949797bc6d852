"""A run's course and its mishaps: NaN, Ctrl-C, a full disk, two processes, damaged or foreign files."""

import dataclasses
import multiprocessing
import resource
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from noback import (
    InputError,
    NobackError,
    OneSided,
    RunConfig,
    Sgd,
    TwoSided,
    predict,
    training,
    tuned_run,
)
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.run import Run, drawn_data
from noback.snapshot import save_snapshot
from noback.training import Interrupted, resume, train
from noback.watching import Silent
from tests.conftest import tiny_model


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder),
        data=str(data_folder),
        steps=8,
        batch=4,
        eval_every=3,
        rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
    )


def test_evaluations_fall_where_they_should_and_the_best_is_kept(config, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_SNAPSHOT_EVERY", 0)
    result = train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    assert [look.step for look in contents.evaluations] == [0, 3, 6, 8]
    assert contents.best().step == result.best_step
    kept = {path.name for path in (tmp_path / "run" / "snapshots").iterdir()}
    assert kept == {f"step-{step:07d}.safetensors" for step in {8, result.best_step} - {0}}


def test_snapshots_that_take_long_are_rare_and_cost_no_bits(config, tmp_path, monkeypatch):
    """A clock that goes on by a second a step, and by three while a snapshot is written."""
    now, taken = [0.0], []

    def save(folder, step, weights, digests):
        taken.append(step)
        now[0] += 3
        save_snapshot(folder, step, weights, digests)

    def stepped(*_):
        now[0] += 1

    watcher = Silent()
    monkeypatch.setattr(watcher, "stepped", stepped)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr(training, "save_snapshot", save)
    monkeypatch.setattr(training, "_SNAPSHOT_EVERY", 2)
    config = dataclasses.replace(config, steps=23, eval_every=2)
    result = train(config, tmp_path / "rare", watcher=watcher)
    assert taken == [2, 8, 14, 20, 23]  # the first, those after twice three seconds, the last
    monkeypatch.undo()
    monkeypatch.setattr(training, "_SNAPSHOT_EVERY", 0)
    often = train(config, tmp_path / "often")
    assert (result.weights, result.final_weights) == (often.weights, often.final_weights)


def test_the_default_look_is_a_tenth_of_the_run():
    assert [RunConfig(steps=steps).steps_between_evaluations for steps in (5, 100, 999)] == [1, 10, 99]


def test_a_batch_larger_than_the_training_set_is_the_training_set(small_task):
    assert len(small_task.batch(0, 64, 0)) == 8


def test_a_batch_that_was_made_ahead_is_the_steps_own(config, tmp_path):
    run, fresh = (Run(config, RunFolder(tmp_path)) for _ in range(2))
    for one in (run, fresh):
        one.task.use(drawn_data(config))
    run._make_next_batch()
    assert run._next is None  # before a step was asked for, nothing is known
    for step in (0, 1, 1, 2, 7, 3):
        batch = run.batch(step)
        run._make_next_batch()
        assert run._next[0] == step + 1
        assert torch.equal(batch.inputs["input_ids"], fresh.batch(step).inputs["input_ids"])
        assert torch.equal(batch.gold, fresh.batch(step).gold)
    staged = run._next
    run.batch(3)  # asked for again
    assert run._next is staged
    assert run.batch(4) is staged[1]


def test_an_epoch_shows_every_example_once(small_task):
    seen = [row for step in range(4) for row in small_task.batch(step, 2, 0).inputs["input_ids"][:, 1].tolist()]
    everything = small_task.batch(0, 8, 0).inputs["input_ids"][:, 1].tolist()
    assert sorted(seen) == sorted(everything)


def test_answers_that_are_no_numbers_stop_the_run_and_the_journal_replays(config, tmp_path):
    with pytest.raises(NobackError, match=r"are no numbers \(nan or infinite\) at step (\d+)") as error:
        train(dataclasses.replace(config, rule=Sgd(lr=1e30)), tmp_path / "run")
    steps = read_journal(tmp_path / "run" / "journal").steps
    assert f"at step {len(steps)}" in str(error.value)
    replayed, step = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert step == len(steps) > 0
    assert replayed.weights.digest() != replayed.base


def test_a_stopped_run_says_how_to_go_on_and_ends_on_the_same_bits(config, tmp_path):
    undisturbed = train(config, tmp_path / "undisturbed")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match=r"stopped after step 2.*noback resume"):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == undisturbed.final_weights


def test_the_journal_names_the_unit_of_its_slopes_and_its_figures(config, tmp_path):
    plain, spread = ("loss per unit", []), ("spreads of the losses", ["spread"])
    for estimator, said in ((TwoSided(eps=1e-2), plain), (OneSided(), spread)):
        train(dataclasses.replace(config, estimator=estimator, steps=2), tmp_path / estimator.kind)
        contents = read_journal(tmp_path / estimator.kind / "journal")
        assert (contents.header["slope_unit"], contents.header["figures"]) == said
        assert all(len(record.figures) == len(said[1]) and all(record.figures) for record in contents.steps)


def test_a_finished_run_resumes_to_its_own_result(config, tmp_path):
    result = train(config, tmp_path / "run")
    again = resume(tmp_path / "run")
    assert (again.weights, again.best, again.zero_shot) == (result.weights, result.best, result.zero_shot)


def test_a_damaged_snapshot_costs_a_replay_and_no_bits(config, tmp_path):
    result = train(config, tmp_path / "run")
    for path in (tmp_path / "run" / "snapshots").iterdir():
        path.write_bytes(path.read_bytes()[:-5] + b"wrong")
    tuned, _ = tuned_run(tmp_path / "run", "final")
    assert tuned.weights.digest() == result.final_weights


def test_a_second_process_is_refused(config, tmp_path, noback):
    train(config, tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        code, out, err = noback("resume", tmp_path / "run", "--json")
    assert (code, out) == (2, "")
    assert "in use by another process" in err


def test_a_journal_of_another_model_is_refused(config, tmp_path, tokenizer, noback):
    train(config, tmp_path / "run")
    other = tiny_model("roberta")
    other.roberta.embeddings.word_embeddings.weight.data += 1
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    code, out, err = noback("replay", tmp_path / "run", tmp_path / "out", "--model", tmp_path / "other")
    assert (code, out) == (2, "")
    assert "was made from other base weights" in err
    assert not (tmp_path / "out").exists()


def test_a_bit_flipped_journal_is_refused_by_its_record(config, tmp_path, noback):
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "journal"
    damaged = bytearray(path.read_bytes())
    damaged[-6 * 24 + 6] ^= 16
    path.write_bytes(bytes(damaged))
    for command in (["resume", tmp_path / "run"], ["journal", tmp_path / "run"], ["predict", tmp_path / "run", "x"]):
        code, _, err = noback(*command)
        assert code == 2
        assert "record 7 of journal" in err


def test_a_changed_configuration_is_refused(config, tmp_path):
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "run.toml"
    path.write_text(path.read_text().replace("steps = 8", "steps = 9"))
    with pytest.raises(InputError, match=r"steps in .* is 9, but the journal was made with 8"):
        resume(tmp_path / "run")


def train_on_a_small_disk(config, out, limit, answers):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(config, out)
    except NobackError as error:
        answers.put(str(error))


@pytest.mark.parametrize("what", ["journal", "snapshot"])
def test_a_full_disk_loses_nothing(config, tmp_path, what):
    """A limit on the size of files stands in for the disk: it fails the same calls in the same way."""
    undisturbed = train(config, tmp_path / "undisturbed")
    journal = tmp_path / "undisturbed" / "journal"
    limit = journal.stat().st_size - 70 if what == "journal" else 100_000
    processes = multiprocessing.get_context("forkserver")
    answers = processes.Queue()
    smaller = dataclasses.replace(config, eval_every=8) if what == "journal" else config
    process = processes.Process(target=train_on_a_small_disk, args=(smaller, tmp_path / "run", limit, answers))
    process.start()
    message = answers.get(timeout=60)
    process.join()
    assert "cannot write" in message
    assert f"noback resume {tmp_path / 'run'}" in message
    assert resume(tmp_path / "run").final_weights == undisturbed.final_weights


def test_control_c_stops_after_the_step_and_loses_nothing(config, tmp_path):
    config = dataclasses.replace(config, steps=100_000)
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    command = [sys.executable, "-m", "noback", "train", "--config", str(path), "--out", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "run" / "journal"
    while process.poll() is None and not (journal.exists() and len(read_journal(journal).steps) > 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "nothing is lost: noback resume" in err
    assert "Traceback" not in err
    assert read_journal(journal).torn_bytes == 0


def test_data_that_changed_since_the_run_began_is_refused(config, data_folder, tmp_path):
    train(config, tmp_path / "run")
    path = data_folder / "train.jsonl"
    path.write_text(path.read_text().replace("warm", "cold"))
    with pytest.raises(InputError, match="the data or the task file has changed"):
        resume(tmp_path / "run")


def test_a_journal_alone_knows_its_task(config, tmp_path):
    """The task file may be gone: what is tuned, and what its labels mean, stands in the journal."""
    task = tmp_path / "mine.toml"
    task.write_text(
        'name = "mine"\ntemplate = "*cls**sent_0*_It_was*mask*.*sep+*"\nsentences = ["sentence"]\n'
        '[words]\n0 = "dull"\n1 = "funny"\n'
    )
    result = train(dataclasses.replace(config, task=str(task)), tmp_path / "run")
    task.unlink()
    tuned, _ = tuned_run(tmp_path / "run" / "journal")
    assert tuned.weights.digest() == result.weights
    assert tuned.task.spec.words == {"0": "dull", "1": "funny"}
    assert sum(predict(tuned, ["a warm film"])[0].values()) == pytest.approx(1)

"""Trackers: they see the run's figures, change none of its bits, and their failure stops nothing."""

import sqlite3
import subprocess
import sys

import pytest

from noback import InputError, RunConfig, Sgd, TwoSided, train
from noback.journal import read_journal
from noback.trackers import TRACKERS, Trackers

FLAGS = (
    "--readout", "words", "--steps", "6", "--batch", "4", "--eval-every", "3", "--lr", "1e-2", "--eps", "1e-2",
    "--json",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    from tests.conftest import NEGATIVE, POSITIVE, write_rows

    folder = tmp_path_factory.mktemp("data")
    rows = [{"sentence": text, "label": 1} for text in POSITIVE] + [{"sentence": text, "label": 0} for text in NEGATIVE]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def trained(tiny_folder, data, tmp_path_factory):
    """Runs a training in a process of its own, as users do: (run folder, stdout)."""

    def call(*flags):
        folder = tmp_path_factory.mktemp("tracked") / "run"
        import os

        ran = subprocess.run(
            [sys.executable, "-m", "noback", "train", "--model", str(tiny_folder), "--data", str(data), *FLAGS, *flags,
             "--out", str(folder)],
            capture_output=True, text=True, check=False,
            env={**os.environ, "TRACKIO_DIR": str(folder.parent / "trackio"), "HOME": str(folder.parent)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return folder, ran.stdout

    return call


@pytest.fixture(scope="module")
def plain(trained):
    return trained()[0]


@pytest.mark.parametrize("names", ["tensorboard", "trackio", "wandb", "tensorboard,trackio,wandb"])
def test_the_journal_is_the_same_with_and_without_a_tracker(names, trained, plain):
    folder, out = trained("--log-to", names)
    assert (folder / "journal").read_bytes() == (plain / "journal").read_bytes()
    assert out.count("\n") == 1  # one JSON object; a tracker's prints go to stderr
    losses = [record.loss for record in read_journal(folder / "journal").steps]
    if "tensorboard" in names:
        assert logged_to_tensorboard(folder) == pytest.approx(losses)
    if "trackio" in names:
        assert logged_to_trackio(folder) == pytest.approx(losses)
    if "wandb" in names:
        assert list((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def logged_to_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("validation/accuracy")] == [0, 3, 6]
    assert events.Tags()["scalars"].count("health/zero_slope_share") == 1
    return [event.value for event in events.Scalars("train/loss")]


def logged_to_trackio(folder):
    import json

    with sqlite3.connect(folder.parent / "trackio" / "noback.db") as base:
        rows = [json.loads(row[0]) for row in base.execute("select metrics from metrics order by step, id")]
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_a_tracker_that_fails_is_told_of_and_the_run_goes_on(tiny_folder, data, plain, tmp_path, monkeypatch):
    class Broken:
        def __init__(self, folder, config, step):
            pass

        def log(self, values, step):
            raise OSError("the disk is full")

        def close(self):
            raise AssertionError("it was dropped")

    monkeypatch.setitem(TRACKERS, "wandb", Broken)
    said = []
    trackers = Trackers(["wandb"], said.append)
    config = RunConfig(
        model=str(tiny_folder), data=str(data), steps=6, batch=4, eval_every=3, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
    )  # fmt: skip
    train(config, tmp_path / "run", watcher=trackers)
    trackers.close()
    assert said == ["wandb failed (OSError: the disk is full); the run goes on without it"]
    assert (tmp_path / "run" / "journal").read_bytes() == (plain / "journal").read_bytes()


def test_a_tracker_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        Trackers(["tensorbord"])


def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'noback\[trackio\]'"):
        Trackers(["trackio"])

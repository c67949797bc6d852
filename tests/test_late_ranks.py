"""Ranks that begin again: on the same machines, on others without a shared disk, under torchrun."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from noback import InputError, TwoSided, train, training
from noback.distributed import World
from noback.engines.data_parallel import DataParallel
from noback.objectives import CrossEntropy
from noback.tasks import Batch
from noback.values import UNPERTURBED
from tests.test_distributed import STEPS, _records, config, killed_after, started, together  # noqa: F401 (a fixture)


def journal(folder):
    return (folder / "run" / "journal").read_bytes()


def test_each_machine_keeps_the_records(config, tmp_path):  # noqa: F811
    alone = train(config, tmp_path / "alone" / "run")
    said = together(2, config, tmp_path / "run", divide="points", machines="ab", restarted=True)
    assert {weights for _, weights, _ in said} == {alone.final_weights}, said
    assert journal(tmp_path / "a") == journal(tmp_path / "b")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a", "alone", "b", "data"}  # no token, no temporary folder


def test_a_run_goes_on_where_the_machine_of_rank_0_is_lost(config, tmp_path):  # noqa: F811
    """The new rank 0 has nothing: it gets the records of the one that is left."""
    alone = train(config, tmp_path / "alone" / "run")
    place = tmp_path / "run"
    _, running = started(2, config, place, divide="points", machines="ab", restarted=True)
    killed_after(running, tmp_path / "b" / "run", 7, 0, 1)
    assert 7 <= _records(tmp_path / "b" / "run") < STEPS
    said = together(2, config, place, divide="points", machines="cb", restarted=True)
    assert {weights for _, weights, _ in said} == {alone.final_weights}, said
    assert journal(tmp_path / "c") == journal(tmp_path / "b") == journal(tmp_path / "alone")


def test_a_late_rank_gets_journal_and_snapshot_and_replays_the_rest(config, tmp_path):  # noqa: F811
    config = dataclasses.replace(config, estimator=TwoSided(eps=1e-2, directions=2))
    alone = train(config, tmp_path / "alone" / "run")
    place = tmp_path / "run"
    _, running = started(2, config, place, divide="points", machines="ab", restarted=True)
    killed_after(running, tmp_path / "a" / "run", 8, random.Random(1).randrange(2))
    kept = {path.name for path in (tmp_path / "a" / "run" / "snapshots").iterdir()}
    assert kept == {"step-0000006.safetensors"}
    told, running = started(4, config, place, divide="points", machines="acde", restarted=True)
    said = sorted(told.get(timeout=120) for _ in running)
    for process in running:
        process.join()
    assert {weights for _, weights, _ in said} == {alone.final_weights}, said
    assert {journal(tmp_path / name) for name in "acde"} == {journal(tmp_path / "alone")}
    assert (tmp_path / "e" / "run" / "snapshots" / "step-0000006.safetensors").is_file()


def test_another_run_at_the_same_place_is_refused(config, tmp_path):  # noqa: F811
    for name, seed in (("a", 0), ("b", 1)):
        train(dataclasses.replace(config, steps=6, seed=seed), tmp_path / name / "run")
    before = journal(tmp_path / "b")
    for _, kind, sentence in together(2, config, tmp_path / "run", machines="ab", restarted=True):
        assert (kind, "rank 1 has another run in" in sentence) == ("InputError", True), sentence
    assert journal(tmp_path / "b") == before
    for _, kind, sentence in together(2, config, tmp_path / "run", machines="cb"):
        assert kind == "InputError"
        assert "exists; choose another" in sentence or "rank 1 has a run folder" in sentence
    assert not (tmp_path / "c" / "run").exists()


def test_torchrun_starts_a_killed_rank_again_and_the_run_ends_as_if_undisturbed(config, tmp_path):  # noqa: F811
    config = dataclasses.replace(config, steps=60, eval_every=60)
    alone = train(config, tmp_path / "alone" / "run")
    (tmp_path / "run.toml").write_text(config.toml())
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2",
        "--monitor-interval", "0.1", "--standalone", "-m", "noback", "train", "--config",
        str(tmp_path / "run.toml"), "--divide", "points", "--out", str(tmp_path / "killed" / "run"),
    ]  # fmt: skip
    with open(tmp_path / "said", "w") as said:
        agent = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
        began = time.monotonic()
        while not _records(tmp_path / "killed" / "run") and agent.poll() is None and time.monotonic() < began + 180:
            time.sleep(0.005)
        workers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        early = _records(tmp_path / "killed" / "run") < config.steps
        assert (early, agent.wait(180)) == (True, 0), _said(tmp_path / "said")
    assert journal(tmp_path / "killed") == journal(tmp_path / "alone")
    assert alone.final_weights in (tmp_path / "killed" / "run" / "metrics.jsonl").read_text()


class Counting(World):
    """Counts what it would send; the other ranks have what this one has."""

    def gathered(self, part):
        self.sent += part.numel() * part.element_size()
        return [part] * self.size


class Scoring:
    """An engine of some number of labels."""

    def __init__(self, labels):
        self.labels = labels

    def score(self, batch, points):
        return [torch.randn(len(batch), self.labels) for _ in points]


@pytest.mark.parametrize(("size", "divide"), [(2, "examples"), (4, "examples"), (2, "points")])
@pytest.mark.parametrize("labels", [2, 6, 100])
def test_a_step_of_64_examples_sends_half_a_kilobyte_whatever_the_labels(size, divide, labels):
    world, rows = Counting(0, size, divide), torch.zeros(64, dtype=torch.long)
    batch = Batch({"input_ids": rows[:, None]}, rows, rows, None)
    DataParallel(Scoring(labels), world, labels).exchanged(batch, [UNPERTURBED] * 2, CrossEntropy().reduced)
    assert world.sent == 2 * 64 * 8 // size < 1000


def _said(path):
    """What noback said, without torchrun's own lines."""
    return "\n".join(line for line in path.read_text().splitlines() if "noback:" in line)


def test_a_process_that_was_started_again_goes_on_with_its_own_run_only(config, tmp_path):  # noqa: F811
    ended = train(config, tmp_path / "run")
    before = (tmp_path / "run" / "journal").read_bytes()
    assert training.train(config, tmp_path / "run", restarted=True).final_weights == ended.final_weights
    rule = dataclasses.replace(config.rule, lr=config.lr / 2)
    for other, named in (({"seed": 5}, "seed is"), ({"rule": rule}, "rule.lr is"), ({"steps": STEPS + 1}, "steps is")):
        with pytest.raises(InputError, match=f"holds another run: its {named}"):
            training.train(dataclasses.replace(config, **other), tmp_path / "run", restarted=True)
    assert (tmp_path / "run" / "journal").read_bytes() == before

"""Several ranks make one run: the same records and weights as one process, whoever shares what, dies or comes late."""

import dataclasses
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise

import pytest
import torch

from noback import (
    InputError,
    LocalEngine,
    NobackError,
    RunConfig,
    Sgd,
    TwoSided,
    compare,
    distributed,
    rank_folders,
    ranks,
    resume,
    snapshot,
    sweep,
    train,
    training,
)
from noback.config import read_config
from noback.distributed import Group, World, check_divide, group_size, share_of
from noback.engines.data_parallel import DataParallel, _shares
from noback.files import write_whole
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.objectives import CrossEntropy
from noback.reproduction import Grid, reproduce
from noback.run import Run
from noback.tasks import Batch
from noback.tuned import tuned_run
from noback.values import UNPERTURBED
from noback.watching import Silent

STEPS = 15


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder),
        data=str(data_folder),
        steps=STEPS,
        batch=8,
        eval_every=6,
        test_limit=8,
        rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
    )


class Watching(Silent):
    """Counts what its rank sends, and may harm the weights after some steps."""

    def __init__(self, harm=None, cut=False):
        self.harm, self.cut, self.run, self.sent = harm, cut, None, []

    def stepped(self, step, _steps, _estimate):
        self.sent.append(self.run.world.sent)
        if step == 3 and self.harm is not None:
            self.harmed(self.run.weights).view(-1)[:] += self.harm

    def harmed(self, weights):
        """A tensor that is whole on each rank, or one that is cut."""
        return next(one for name, one in weights.tensors.items() if (name in weights.division.cuts) == self.cut)


def one_rank(rank, size, port, config, out, told, options):
    """A rank's whole life; `told` gets what it has to say at the end."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(options["environment"][rank] if "environment" in options else {})
    tempfile.tempdir = str(out.parent)  # what a killed rank leaves there goes with the test's folder
    if "machines" in options:  # each rank is the first one of a machine with a disk of its own
        out = out.parent / options["machines"][rank] / "run"
    distributed.TIMEOUT = options.get("timeout", 60.0)
    harm = options.get("harm", 1.0) if rank == options.get("harmed") else None
    watcher = Watching(harm, options.get("cut", False))
    original = Run.__init__

    def opened(run, *args, **kwargs):
        original(run, *args, **kwargs)
        watcher.run = run
        if rank and "base" in options:
            run.base = options["base"]
        if rank and "data" in options:
            run.task.digest = lambda: options["data"]

    Run.__init__ = opened
    if rank == options.get("behind"):
        rank_folders.write_whole = lambda path, data: write_whole(
            path, data[: -100 if path.name == "journal" else None]
        )
    if rank and "code" in options:
        ranks._code = lambda: options["code"]
    if rank == options.get("dies"):
        Group.summed = lambda *_: os._exit(9)
    if rank == options.get("stalls"):
        Group.summed = lambda *_: time.sleep(1000)
    if rank == options.get("hangs"):
        World.agree = lambda *_: time.sleep(1000)
    config = dataclasses.replace(config, **options.get("other", {})) if rank else config
    told_by = {"watcher": watcher, "divide": options.get("divide", "examples")}
    told_by["tensor_parallel"] = options.get("tensor_parallel", 1)
    try:
        again = {"steps": options.get("steps"), **told_by}
        begun = {"restarted": options.get("restarted", False), **told_by}
        result = resume(out, **again) if options["resumed"] else training.train(config, out, **begun)
        told.put((rank, getattr(result, options.get("tells", "final_weights")), watcher.sent))
    except NobackError as error:
        told.put((rank, type(error).__name__, str(error)))


def started(size, config, out, **options):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["noback.training", "tests.test_distributed"])
    told = processes.Queue()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = options.get("port", held.getsockname()[1])
    options["resumed"] = RunFolder(out).config.is_file() and not options.get("trains", False)
    return told, [
        _begun(processes.Process(target=one_rank, args=(rank, size, port, config, out, told, options)))
        for rank in range(size)
    ]


def _begun(process):
    process.start()
    return process


def together(size, config, out, **options):
    """What each rank says at the end, in their order."""
    told, running = started(size, config, out, **options)
    said = sorted(told.get(timeout=120) for _ in running)
    for process in running:
        process.join()
    return said


def killed_after(running, out, records, *victims):
    """Kill some of the ranks once a journal has so many records; the others notice, and end by themselves."""
    while _records(out) < records and all(process.is_alive() for process in running):
        time.sleep(0.001)
    for rank in victims:
        os.kill(running[rank].pid, signal.SIGKILL)
    for process in running:
        process.join(60)
        assert process.exitcode is not None


@pytest.mark.parametrize(
    ("size", "divide", "directions", "micro_batch", "readout"),
    [(2, "examples", 1, None, None), (4, "examples", 1, None, None), (2, "points", 1, None, None),
     (4, "points", 2, None, None), (4, "both", 2, None, None), (3, "examples", 1, 3, None),
     (2, "points", 1, None, "exact"), (2, "examples", 1, None, "exact")],
)  # fmt: skip
def test_ranks_write_the_journal_of_one_process(config, tmp_path, size, divide, directions, micro_batch, readout):
    estimator, engine = TwoSided(eps=1e-2, directions=directions), LocalEngine(micro_batch=micro_batch)
    config = dataclasses.replace(config, estimator=estimator, engine=engine, readout=readout)
    said = together(size, config, tmp_path / "shared", divide=divide)
    scored = read_config(tmp_path / "shared" / "run.toml")["engine"].get("micro_batch")
    assert scored == (micro_batch or (None if divide == "points" else 2))  # ranks choose groups by themselves
    alone = train(dataclasses.replace(config, engine=LocalEngine(micro_batch=scored)), tmp_path / "alone")
    assert {weights for _, weights, _ in said} == {said[0][1]}, said
    # Whoever scores an example scores the same ones beside it.
    assert (tmp_path / "shared" / "journal").read_bytes() == (tmp_path / "alone" / "journal").read_bytes()
    assert said[0][1] == alone.final_weights
    between = {after - before for _, _, sent in said for before, after in pairwise(sent)}
    # Of a step; where there is an evaluation between, more: a float64 a point and example, and whether to stop.
    if size != 3:  # a readout's rows are added before anything is sent
        assert min(between) == estimator.forwards * config.batch * 8 // size + 1
    assert 0 < min(between) < 3000
    assert tuned_run(tmp_path / "shared", "final", snapshots=False)[0].weights.digest() == said[0][1]


def test_a_run_whose_ranks_are_killed_ends_on_the_same_bits_with_any_number_of_them(config, tmp_path):
    engine = LocalEngine(micro_batch=2)
    config = dataclasses.replace(config, estimator=TwoSided(eps=1e-2, directions=2), engine=engine)
    alone, out, chance = train(config, tmp_path / "alone"), tmp_path / "killed", random.Random(2)
    records, kills = 0, 0
    for size, divide in ((2, "points"), (4, "examples"), (2, "examples"), (4, "both"), (2, "points")):
        told, running = started(size, config, out, divide=divide)
        records += chance.choice([1, 2, 3])
        victim = chance.randrange(size)
        killed_after(running, out, records, victim)
        kills += running[victim].exitcode == -signal.SIGKILL
        told.close()
    assert kills == 5
    result = resume(out)
    assert result.final_weights == alone.final_weights
    assert (out / "journal").read_bytes() == (tmp_path / "alone" / "journal").read_bytes()


def test_ranks_make_a_run_longer(config, tmp_path):
    whole = train(config, tmp_path / "whole")
    train(dataclasses.replace(config, steps=6), tmp_path / "run")
    said = together(2, config, tmp_path / "run", divide="points", steps=STEPS)
    assert {weights for _, weights, _ in said} == {whole.final_weights}


def test_snapshots_that_another_rank_is_removing_are_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "_steps", lambda _folder: [6])  # seen, and gone by now
    snapshot.remove_snapshots(tmp_path)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a number of ranks"),
        ({"WORLD_SIZE": "2"}, "the ranks cannot meet: .*RANK expected.* or unset WORLD_SIZE"),
    ],
)
def test_an_environment_that_describes_no_ranks_is_named(config, tmp_path, monkeypatch, found, sentence):
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=sentence):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("several", ["comparison", "sweep", "reproduction"])
def test_several_runs_are_for_one_process(config, tmp_path, monkeypatch, several):
    grid = Grid("", "mini", "", tasks=(), shots=(), seeds=(), test_limit=1, methods=())
    made = {
        "comparison": lambda: compare(config, out=tmp_path / "out"),
        "sweep": lambda: sweep(config, {"seed": [0, 1]}, tmp_path / "out"),
        "reproduction": lambda: reproduce(grid, tmp_path / "out", watcher=Silent()),
    }
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=f"a {several} is for one process, and this is one of 2"):
        made[several]()
    assert not (tmp_path / "out").exists()


def _records(out):
    try:
        return len(read_journal(out / "journal").steps)
    except (OSError, NobackError):
        return 0


def test_a_rank_whose_weights_are_not_those_of_the_others_is_named(config, tmp_path):
    for rank, kind, sentence in together(2, config, tmp_path / "run", harmed=1):
        assert kind == "InputError", (rank, sentence)
        assert "rank 1 has another set of weights after step 6 than rank 0" in sentence


def test_a_rank_whose_records_are_not_those_of_the_others_is_named(config, tmp_path):
    train(dataclasses.replace(config, steps=6), tmp_path / "run")
    for _, kind, sentence in together(2, config, tmp_path / "run", behind=1):
        assert (kind, "rank 1 has another journal than rank 0" in sentence) == ("InputError", True), sentence


def test_weights_that_give_no_numbers_on_one_rank_stop_all(config, tmp_path):
    """A rank that raised by itself would leave the others waiting."""
    for rank, kind, sentence in together(2, config, tmp_path / "run", harmed=1, harm=float("nan")):
        assert (kind, "4 of 8 examples have label logits that are no numbers" in sentence) == ("Diverged", True), rank


@pytest.mark.parametrize(
    ("other", "what"),
    [("code", "version of noback, or of a library"), ("base", "base model"), ("data", "task or other data")],
)
def test_ranks_with_another_code_model_or_data_are_refused(config, tmp_path, other, what):
    for _, kind, sentence in together(2, config, tmp_path / "run", **{other: "another"}):
        assert (kind, f"rank 1 has another {what}" in sentence) == ("InputError", True), sentence


@pytest.mark.parametrize(("other", "what"), [({"seed": 5}, "configuration"), ({"task": "sst2"}, "configuration")])
def test_ranks_that_would_make_other_moves_are_refused(config, tmp_path, other, what):
    said = together(2, dataclasses.replace(config, steps=2, eval_every=2), tmp_path / "run", other=other)
    assert said[0][1] == "InputError"
    assert f"rank 1 has another {what} than rank 0" in said[0][2]


def test_a_rank_that_hangs_is_named(config, tmp_path):
    told, running = started(2, config, tmp_path / "run", hangs=1, timeout=3.0)
    rank, kind, sentence = told.get(timeout=60)
    running[1].kill()
    assert (rank, kind) == (0, "LostRank")
    assert "rank 1 of 2 went away or did not answer within 3 s" in sentence


def test_only_rank_0_writes_into_the_folder(config, tmp_path):
    said = together(2, config, tmp_path / "run", tells="run")
    assert [where for _, where, _ in said] == [str(tmp_path / "run")] * 2  # where each rank finds it
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["journal", "lock", "metrics.jsonl", "run.toml", "snapshots", "trained-rows"]
    lines = [line for line in RunFolder(tmp_path / "run").read_metrics() if line["kind"] == "result"]
    assert len(lines) == 1


class Noting:
    """An engine that notes which examples it scores together, `size` at a time."""

    def __init__(self, size):
        self.size, self.seen = size, []

    def score(self, batch, points):
        self.seen += [tuple(part.tolist()) for part in batch.gold.split(self.size)]
        return [torch.zeros(len(batch), 50) for _ in points]

    def write(self, prompts, points, _writing):
        self.seen += [tuple(prompts[first : first + self.size]) for first in range(0, len(prompts), self.size)]
        return [prompts for _ in points]


class Echoing(World):
    """A world whose other ranks have what this one has."""

    def gathered(self, part):
        return [part] * self.size

    def gathered_bytes(self, data):
        return [data] * self.size


@pytest.mark.parametrize("ask", ["score", "exchanged", "write"])
@pytest.mark.parametrize(("count", "size"), [(2, 16), (3, 16), (4, 16), (3, 5)])
def test_ranks_score_together_what_one_process_does(ask, count, size):
    ids = torch.arange(50)
    batch, points = Batch({"input_ids": ids[:, None]}, ids, ids, None), [UNPERTURBED] * 2
    asked = {"score": (batch, points), "exchanged": (batch, points, CrossEntropy().reduced),
             "write": (ids.tolist(), points, None)}  # fmt: skip
    alone, seen = Noting(size), []
    getattr(alone, "write" if ask == "write" else "score")(*asked["write" if ask == "write" else "score"])
    for rank in range(count):
        own = Noting(size)
        getattr(DataParallel(own, Echoing(rank, count), 50, size), ask)(*asked[ask])
        seen += own.seen
    assert seen == alone.seen


@pytest.mark.parametrize("examples", [*range(1, 40), 64, 100])
def test_one_two_and_four_ranks_score_the_same_groups_of_examples(examples):
    size = group_size(examples, 1)
    assert {group_size(examples, count) for count in (2, 4)} == {size}
    for count in range(1, 9):
        own = group_size(examples, count)
        shares = [share_of(examples, rank, count, own) for rank in range(count)]
        assert [one.start for one in shares] == [0, *(one.stop for one in shares[:-1])]
        assert shares[-1].stop == examples
        assert all(one.start % own == 0 for one in shares if one.start < examples)
        assert examples < count or all(one.stop > one.start for one in shares)  # none has nothing to do


@pytest.mark.parametrize(("batch", "ranks", "size"), [(64, 4, 16), (64, 2, 16), (64, 3, 11), (64, 5, 13), (64, 8, 8)])
def test_groups_are_a_quarter_of_a_batch_or_what_gives_ranks_equal_shares(batch, ranks, size):
    assert group_size(batch, ranks) == size
    assert max(one.stop - one.start for one in (share_of(batch, rank, ranks, size) for rank in range(ranks))) <= (
        -(-batch // ranks) + ranks
    )


@pytest.mark.parametrize("divide", distributed.DIVIDED)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("points", [1, 2, 4, 5])
@pytest.mark.parametrize("examples", [1, 2, 7, 16])
@pytest.mark.parametrize("unparted", [1, 3])
def test_every_point_of_every_example_is_scored_by_one_rank(divide, size, points, examples, unparted):
    seen = [
        (point, example)
        for some, part in _shares(World(0, size, divide), points, examples, unparted)
        for point in range(points)[some]
        for example in range(examples)[part]
    ]
    assert sorted(seen) == [(point, example) for point in range(points) for example in range(examples)]


@pytest.mark.parametrize(
    ("divide", "size", "points"), [("points", 3, 2), ("points", 4, 2), ("both", 3, 2), ("x", 2, 2)]
)
def test_ranks_that_cannot_share_the_points_are_refused(divide, size, points):
    with pytest.raises(InputError, match=r"divisor|expected one of"):
        check_divide(divide, size, points)


def test_workers_speak_with_one_voice(config, tmp_path):
    (tmp_path / "run.toml").write_text(config.toml())
    command = [
        sys.executable,
        "-m",
        "noback",
        "train",
        "--config",
        str(tmp_path / "run.toml"),
        "--json",
        "--steps",
        "3",
    ]
    done = subprocess.run(
        [*command, "--workers", "2", "--divide", "points", "--out", str(tmp_path / "run")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 3
    assert done.stderr.count("2 ranks share each step by points") == 1
    alone = train(dataclasses.replace(config, steps=3), tmp_path / "alone")
    assert json.loads(done.stdout)["final_weights"] == alone.final_weights


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--workers", "none"], "--workers is 'none'; expected a whole number above zero"),
        (["--workers", "3", "--divide", "points"], "3 ranks cannot share the 2 points of a step evenly"),
    ],
)
def test_workers_that_cannot_share_a_step_are_refused_in_one_sentence(tmp_path, flags, sentence):
    done = subprocess.run(
        [sys.executable, "-m", "noback", "train", *flags, "--out", str(tmp_path / "run")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"noback: {sentence}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()

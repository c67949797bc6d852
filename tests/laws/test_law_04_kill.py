"""Law 4: killed at any instant and resumed, a run ends on the same bits as one never killed."""

import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import time

import pytest

from noback import Momentum, OneSided, RunConfig, Sgd, TwoSided
from noback.folder import RunFolder
from noback.training import Interrupted, resume, train
from tests.contracts.tables import DIRECTIONS_PER, ESTIMATORS, NOISES, READOUTS, RULES

KILLS = 20
STEPS = 240


def start(config, out):
    resume(out) if RunFolder(out).config.is_file() else train(config, out)


@pytest.mark.parametrize(("per", "readout"), [("step", None), ("example", None), ("step", READOUTS["exact"])], ids=str)
def test_a_run_killed_twenty_times_ends_on_the_same_bits(tiny_folder, data_folder, tmp_path, per, readout):
    config = RunConfig(
        model=str(tiny_folder),
        data=str(data_folder),
        steps=STEPS,
        batch=4,
        directions_per=per,
        noise="normal" if per == "step" else "rank1",
        eval_every=7,
        rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
        readout=readout,
    )
    undisturbed = train(config, tmp_path / "undisturbed")
    # A server that has imported everything and run nothing: its children start in a moment and are killed for real.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["noback.training", "tests.laws.test_law_04_kill"])
    out, chance = tmp_path / "killed", random.Random(4)
    kills, steps_at_kill = 0, set()
    while kills < KILLS:
        child = processes.Process(target=start, args=(config, out))
        child.start()
        grow_to = size_of(out / "journal") + chance.choice([0, 1, 20, 60, 150, 300])
        while child.is_alive() and size_of(out / "journal") < grow_to:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)  # anywhere in a step, an evaluation or a snapshot
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        if child.exitcode == -signal.SIGKILL:
            kills += 1
            steps_at_kill.add(size_of(out / "journal"))
        else:  # it was done before the signal came
            assert child.exitcode == 0
            break
    assert kills == KILLS
    assert len(steps_at_kill) > KILLS // 2  # they did hit different instants
    result = resume(out)
    assert result.final_weights == undisturbed.final_weights
    assert (result.weights, result.best_step) == (undisturbed.weights, undisturbed.best_step)
    assert (out / "journal").read_bytes() == (tmp_path / "undisturbed" / "journal").read_bytes()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_method_goes_on_from_any_step(tiny_folder, data_folder, tmp_path, estimator, rule):
    """From a snapshot and the records after it, and from the records alone."""
    chosen = {"estimator": ESTIMATORS[estimator].estimator, "rule": dataclasses.replace(RULES[rule], lr=1e-2)}
    check_going_on(tiny_folder, data_folder, tmp_path, chosen)


@pytest.mark.parametrize("per", DIRECTIONS_PER)
def test_so_does_one_with_directions_of_its_examples_own(tiny_folder, data_folder, tmp_path, per):
    chosen = {"directions_per": per, "noise": DIRECTIONS_PER[per], "rule": Sgd(lr=1e-2, clip=2.0)}
    check_going_on(tiny_folder, data_folder, tmp_path, {**chosen, "estimator": OneSided(eps=1e-2, directions=2)})


@pytest.mark.parametrize("per", ["step", "example"])
def test_so_does_one_whose_columns_are_kept_for_three_steps(tiny_folder, data_folder, tmp_path, per):
    chosen = {"directions_per": per, "noise": NOISES["kept_columns"], "rule": Momentum(lr=1e-2, window=4)}
    check_going_on(tiny_folder, data_folder, tmp_path, {**chosen, "estimator": OneSided(eps=1e-2, directions=2)})


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("per", ["step", "example"])
def test_so_does_one_with_a_readout(tiny_folder, data_folder, tmp_path, per, readout):
    chosen = {"directions_per": per, "rule": Momentum(lr=1e-2, window=2), "readout": READOUTS[readout]}
    check_going_on(tiny_folder, data_folder, tmp_path, {**chosen, "estimator": OneSided(eps=1e-2, directions=2)})


def check_going_on(tiny_folder, data_folder, tmp_path, chosen):
    config = RunConfig(
        model=str(tiny_folder), data=str(data_folder), test_limit=8, steps=7, batch=4, eval_every=3, **chosen
    )
    undisturbed = train(config, tmp_path / "undisturbed")
    for after, keeps_snapshots in ((1, True), (4, True), (5, False)):
        out, asked = tmp_path / str(after), iter([False] * after + [True])
        with pytest.raises(Interrupted):
            train(config, out, stop=lambda asked=asked: next(asked))
        assert (out / "snapshots").exists() is (after > 3)
        if not keeps_snapshots:
            shutil.rmtree(out / "snapshots")
        assert resume(out).final_weights == undisturbed.final_weights
        assert (out / "journal").read_bytes() == (tmp_path / "undisturbed" / "journal").read_bytes()


def size_of(path):
    return path.stat().st_size if path.exists() else 0

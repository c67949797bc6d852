"""Law 3: base + journal = live weights, bit for bit, for every estimator x direction x rule x dtype."""

import dataclasses

import pytest
import torch

from noback import (
    Accuracy,
    AdaptTies,
    CrossEntropy,
    Full,
    Head,
    LocalEngine,
    Lora,
    MacroF1,
    Momentum,
    Prefix,
    RunConfig,
    Sgd,
    TwoSided,
    train,
)
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.replaying import go_to, move_at
from noback.run import Run
from noback.tuned import tuned_run
from tests.contracts.tables import DIRECTIONS_PER, ESTIMATORS, NOISES, READOUTS, RULES


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=7, batch=4, rule=Sgd(lr=1e-2), estimator=TwoSided(eps=1e-2)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_base_and_journal_give_the_live_weights(config, tmp_path, dtype, rule, estimator):
    chosen = {"estimator": ESTIMATORS[estimator].estimator, "rule": dataclasses.replace(RULES[rule], lr=1e-2)}
    check(dataclasses.replace(config, dtype=dtype, **chosen), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("noise", NOISES)
def test_so_they_do_for_every_noise(config, tmp_path, noise, dtype):
    check(dataclasses.replace(config, dtype=dtype, noise=NOISES[noise]), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("per", DIRECTIONS_PER)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_so_they_do_whosever_the_directions_are(config, tmp_path, estimator, per, dtype):
    chosen = {"noise": DIRECTIONS_PER[per], "estimator": ESTIMATORS[estimator].estimator, "directions_per": per}
    check(dataclasses.replace(config, dtype=dtype, rule=Momentum(lr=1e-2, window=2, clip=3.0), **chosen), tmp_path)


@pytest.mark.parametrize("adapter", [Lora(rank=2), Prefix(tokens=2), Head()], ids=lambda one: one.kind)
@pytest.mark.parametrize("noise", ["rank1", "low_rank", "kept_columns"])
def test_so_they_do_for_low_rank_directions_an_example_of_every_adapter(config, tmp_path, noise, adapter):
    check(dataclasses.replace(config, noise=noise, adapter=adapter, directions_per="example"), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_so_they_do_with_every_readout(config, tmp_path, dtype, readout, estimator):
    chosen = {"estimator": ESTIMATORS[estimator].estimator, "readout": READOUTS[readout]}
    check(dataclasses.replace(config, dtype=dtype, **chosen), tmp_path)


def check(config, tmp_path):
    result = train(config, tmp_path / "run")
    replayed, step = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert step == 7
    assert replayed.weights.digest() == result.final_weights
    assert replayed.weights.digest() not in {replayed.base, replayed.start}
    assert replayed.readout_values == read_journal(tmp_path / "run" / "journal").evaluations[-1].readout


@pytest.mark.parametrize("adapter", [Full(), Head(), Head(alone=True)], ids=["words", "head", "head-alone"])
@pytest.mark.parametrize("objective", [Accuracy(), MacroF1(), CrossEntropy()], ids=lambda one: one.kind)
def test_so_they_do_for_every_objective_and_adapter(config, tmp_path, objective, adapter):
    ties = AdaptTies(target=0.0, largest=1.0, factor=8.0, window=2)
    config = dataclasses.replace(config, objective=objective, adapter=adapter, adapt_ties=ties)
    result = train(config, tmp_path / "run")
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights


def test_a_replay_does_not_care_about_threads_or_probes_per_pass(config, tmp_path):
    result = train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    threads = torch.get_num_threads()
    for count, probes in ((1, 1), (2, 2), (3, None)):
        torch.set_num_threads(count)
        try:
            run = Run(
                dataclasses.replace(config, engine=LocalEngine(probes_per_pass=probes)),
                RunFolder(tmp_path / "elsewhere"),
            )
            go_to(run, 7, contents, snapshots=False)
        finally:
            torch.set_num_threads(threads)
        assert run.weights.digest() == result.final_weights


def test_the_journal_alone_says_which_step_was_best(config, tmp_path):
    result = train(dataclasses.replace(config, eval_every=1), tmp_path / "run")
    (tmp_path / "journal").write_bytes((tmp_path / "run" / "journal").read_bytes())
    replayed, step = tuned_run(tmp_path / "journal", snapshots=False)
    assert (step, replayed.weights.digest()) == (result.best_step, result.weights)


def test_every_step_between_can_be_rebuilt(config, tmp_path):
    """Weights at step s, moved by record s, are the weights at step s + 1."""
    train(dataclasses.replace(config, rule=Momentum(lr=1e-2, window=3)), tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    for step in range(7):
        run, _ = tuned_run(tmp_path / "run", str(step), snapshots=False)
        run.weights.advance([move_at(run, contents.steps, step)])
        after, _ = tuned_run(tmp_path / "run", str(step + 1))
        assert run.weights.digest() == after.weights.digest()

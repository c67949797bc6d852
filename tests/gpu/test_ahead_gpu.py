"""A GPU that is ahead of its journal: the bits of one that waits, of the CPU, and of a run never killed."""

import signal
import subprocess
import sys
import time

import pytest
import torch

from noback.directions import LowRank, Rank1
from noback.estimators import OneSided, TwoSided, estimate
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.measuring import begin_on
from noback.objectives import CrossEntropy, cross_entropy
from noback.rules import Momentum, Sgd
from noback.run import Run
from noback.training import resume, train
from noback.tuned import tuned_run
from noback.weights import DTYPES
from tests.gpu.test_gpu import OTHER_SEED, SEED, both_sides, config, full_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [24, 96])
@pytest.mark.parametrize("model", ["mini", "mini-causal"])
def test_full_rows_give_the_same_bits_plainly_and_captured(tmp_path, dtype, tokens, model):
    """A run that goes on takes a shape's first forward plainly where one never stopped replays it."""
    task = "reviews-causal" if model == "mini-causal" else "reviews"
    run = Run(config(device="cuda", dtype=dtype, model=model, task=task), RunFolder(tmp_path))
    points = both_sides(SEED, 1e-3)
    run.engine.score(full_rows(16), points)  # what is checked once
    plain, _, captured = (run.engine.score(full_rows(tokens), points) for _ in range(3))
    assert run.engine.runner.refused() is None
    assert run.engine.runner.captured()
    assert all(map(torch.equal, plain, captured))


METHODS = {
    "two_sided-1": {"estimator": TwoSided(eps=1e-2)},
    "two_sided-3": {"estimator": TwoSided(eps=1e-2, directions=3)},
    "one_sided": {"estimator": OneSided(eps=1e-2, directions=5)},
    "momentum": {"rule": Momentum(lr=1e-4, window=4)},
    "readout": {"readout": "exact"},
    "rank1": {"noise": Rank1()},
    "low_rank-3": {"noise": LowRank(2), "estimator": TwoSided(eps=1e-2, directions=3)},
    "by example": {"noise": Rank1(), "directions_per": "example", "rule": Sgd(lr=1e-4, clip=3)},
    "by group": {"noise": Rank1(), "directions_per": "group:3", "estimator": OneSided(eps=1e-2, directions=3)},
    "by group, normal": {"directions_per": "group:4"},
    "both": {"estimator": OneSided(eps=1e-2, directions=3), "rule": Momentum(lr=1e-4, window=3, weight_decay=0.1)},
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.mark.parametrize("estimator", [TwoSided(eps=1e-2), OneSided(eps=1e-2, directions=3)], ids=["two", "one"])
def test_what_is_measured_ahead_is_what_is_scored(tmp_path, estimator):
    run = Run(config(device="cuda"), RunFolder(tmp_path))
    for seed in (SEED, OTHER_SEED, 7, SEED):
        seeds = tuple(seed + number for number in range(estimator.directions))
        ahead = begin_on(run.engine, full_rows(24), CrossEntropy(), estimator, seeds)
        plain = run.engine.score(full_rows(24), next(estimator.search(seeds)))  # on its way before the first was read
        found, outputs = ahead.read()
        assert all(map(torch.equal, outputs, plain))
        losses = [cross_entropy(one, full_rows(24).gold) for one in plain]
        expected = estimate(estimator, seeds, lambda _, losses=losses: losses)
        assert found.slopes == pytest.approx(expected.slopes, rel=1e-5, abs=1e-6)
        assert found.figures == pytest.approx(expected.figures, rel=1e-5)
        assert found.slopes == tuple(ahead.slopes.tolist())  # what is recorded is what the GPU moves by


@methods
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_that_is_ahead_of_the_journal_ends_on_the_bits_of_one_that_waits(tmp_path, dtype, method):
    """Its move is made there and its record here; with `health_every` each step waits for its record."""
    one = config(device="cuda", dtype=dtype, **{"steps": 24, "eval_every": 9, "rule": Sgd(lr=1e-4), **method})
    ahead, waiting = train(one, tmp_path / "ahead"), train(one, tmp_path / "waiting", health_every=1)
    assert ahead.final_weights == waiting.final_weights
    assert (tmp_path / "ahead" / "journal").read_bytes() == (tmp_path / "waiting" / "journal").read_bytes()
    replayed = tuned_run(tmp_path / "ahead", "final", snapshots=False, device="cpu")[0]
    assert replayed.weights.digest() == ahead.final_weights


def test_a_run_killed_on_a_gpu_ends_on_the_bits_of_one_never_killed(tmp_path):
    """Killed for real, in the middle of steps whose records are behind the weights."""
    whole = train(config(device="cuda", steps=400, eval_every=150), tmp_path / "whole")
    out, journal = tmp_path / "killed", tmp_path / "killed" / "journal"
    options = "steps=400, batch=8, test_limit=20, eval_every=150, device='cuda'"
    begin = f"noback.train(noback.RunConfig({options}), {str(out)!r})"
    went_on = f"noback.resume({str(out)!r})"
    for steps in (40, 210):
        program = "import noback; " + (went_on if journal.exists() else begin)
        child = subprocess.Popen([sys.executable, "-c", program])
        while child.poll() is None and not (journal.exists() and len(read_journal(journal).steps) >= steps):
            time.sleep(0.001)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert steps <= len(read_journal(journal).steps) < 400
    assert resume(out).final_weights == whole.final_weights
    assert journal.read_bytes() == (tmp_path / "whole" / "journal").read_bytes()

"""A GPU that is ahead of its journal: the bits of one that waits, of the CPU, and of a run never killed."""

import signal
import subprocess
import sys
import time

import pytest
import torch

from noback.estimators import TwoSided
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.late import scored
from noback.objectives import CrossEntropy, cross_entropy
from noback.rules import Sgd
from noback.run import Run
from noback.training import resume, train
from noback.tuned import tuned_run
from noback.weights import DTYPES
from tests.gpu.test_gpu import OTHER_SEED, SEED, config, full_rows

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
    points = TwoSided(eps=1e-3).points([SEED])
    run.engine.score(full_rows(16), points)  # what is checked once
    plain, _, captured = (run.engine.score(full_rows(tokens), points) for _ in range(3))
    assert run.engine.runner.refused() is None
    assert run.engine.runner.captured()
    assert all(map(torch.equal, plain, captured))


def test_what_is_scored_late_is_what_is_scored(tmp_path):
    run = Run(config(device="cuda"), RunFolder(tmp_path))
    for seed in (SEED, OTHER_SEED, 7, SEED):
        points = TwoSided(eps=1e-2).points([seed])
        late = scored(run.engine, full_rows(24), points, CrossEntropy())
        plain = run.engine.score(full_rows(24), points)  # on its way before the first was read
        expected = [cross_entropy(one, full_rows(24).gold) for one in plain]
        assert late.losses() == pytest.approx(expected, rel=1e-12)
        assert all(map(torch.equal, late.outputs(), plain))


def test_slopes_of_losses_on_the_gpu_are_those_of_a_record_to_the_bit():
    """Losses whose slopes lie between two float32 numbers: the least error of a division would show."""
    estimator, made = TwoSided(eps=3e-4, directions=10000), torch.Generator().manual_seed(0)
    below = torch.randn(10000, generator=made)
    between = (below.double() + torch.nextafter(below, torch.full_like(below, torch.inf)).double()) / 2
    losses = torch.stack([between * (2.0 * 3e-4), torch.zeros(10000, dtype=torch.float64)], dim=1).view(-1)
    expected = estimator.estimate(range(10000), losses.tolist()).slopes
    assert tuple(estimator.slopes(losses.cuda()).tolist()) == expected
    careless = ((losses[::2] * (1.0 / (2.0 * 3e-4))).float().double()).tolist()
    assert sum(one != other for one, other in zip(careless, expected, strict=True)) > 100


@pytest.mark.parametrize("directions", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_that_is_ahead_of_the_journal_ends_on_the_bits_of_one_that_waits(tmp_path, dtype, directions):
    """Its move is made there and its record here; with `health_every` each step waits for its record."""
    options = {"steps": 24, "eval_every": 9, "estimator": TwoSided(directions=directions), "rule": Sgd(lr=1e-4)}
    one = config(device="cuda", dtype=dtype, **options)
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

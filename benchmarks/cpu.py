"""What a step costs on this machine's CPU, each figure a ratio measured side by side in one run.

    python benchmarks/cpu.py            prints a table and writes benchmarks/results/cpu.json

- sweep: the in-place update of every weight of the embedded model against torch.randn + add_;
- step: a whole full-parameter step (score, journal record, update) against its plain forwards, the better of one
  forward of 2B examples and two of B, with the same readout;
- memory: the peak of a process that takes steps against one that only infers, the same batch; medians of five each;
- journal: bytes a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import noback  # noqa: F401  # isort: skip  (before torch, as on the command line: it settles how torch's idle threads wait)
import torch
from machine import machine
from safetensors.torch import load_file

from noback.config import RunConfig
from noback.embedded import MODELS
from noback.engines import LocalEngine
from noback.folder import RunFolder
from noback.journal import Journal, StepRecord
from noback.measuring import measure
from noback.replaying import header
from noback.rules import move_of
from noback.run import Run, drawn_data
from noback.tasks import Batch
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights

RESULTS = Path(__file__).parent / "results" / "cpu.json"
ROUNDS = 15
PROCESSES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-of", choices=MEMORY, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_of(MEMORY[arguments.memory_of]))
        return
    results = {"machine": machine(), "sweep": sweep(), "step": step(), "memory": memory()}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def ready(**options) -> tuple[Run, Batch]:
    config = RunConfig(readout=None, **options)
    run = Run(config, RunFolder(tempfile.mkdtemp()))
    run.task.use(drawn_data(config))
    return run, run.task.batch(0, config.batch, config.seed)


def sweep() -> dict:
    """Before any model is opened, so that torch's allocator is as PyTorch sets it."""
    stored = load_file(MODELS["mini"] / "model.safetensors")
    weights = Weights({name: tensor.float() for name, tensor in stored.items()})
    tensors = list(weights.tensors.values())
    count = sum(tensor.numel() for tensor in tensors)

    def torch_way() -> None:
        for tensor in tensors:
            tensor.add_(torch.randn(tensor.shape), alpha=1e-9)

    found = {"noback": lambda: weights.advance([Move((Term(1, 1e-9),))]), "torch.randn + add_": torch_way}
    seconds = side_by_side(found)
    rates = {name: count / statistics.median(times) / 1e6 for name, times in seconds.items()}
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
    return {
        "weights": count,
        "million_weights_a_second": rounded(rates),
        "times_faster": round(statistics.median(ratios), 2),
    }


def step() -> dict:
    run, batch = ready()
    double = Batch(
        {name: tensor.repeat(2, 1) for name, tensor in batch.inputs.items()},
        batch.mask_positions.repeat(2),
        batch.gold.repeat(2),
    )
    journal = Journal.create(run.folder.journal, header(run))
    before, taken = run.folder.journal.stat().st_size, 0

    def whole_step() -> None:
        nonlocal taken
        estimate = measure(run, 0, run.config.eps).estimate
        journal.append(StepRecord(taken, estimate.loss, estimate.slopes))
        run.weights.advance([move_of(run.config.rule, 0, run.config.steps, [estimate])])
        taken += 1

    seconds = side_by_side(
        {
            "one forward of 2B": lambda: run.engine.score(double, [UNPERTURBED]),
            "two forwards of B": lambda: [run.engine.score(batch, [UNPERTURBED]) for _ in range(2)],
            "step": whole_step,
        }
    )
    one, two, ours = seconds.values()
    bare = min(one, two, key=statistics.median)
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return {
        "batch": len(batch),
        "tokens": batch.inputs["input_ids"].shape[1],
        "milliseconds": rounded({name: 1e3 * statistics.median(times) for name, times in seconds.items()}),
        "step_over_bare_forwards": round(statistics.median(ratios), 3),
        "journal_bytes_a_step": (run.folder.journal.stat().st_size - before) / taken,
    }


def peak_of(work: Callable[[Run, Batch], None]) -> int:
    """The highest resident memory, in bytes, from the moment the model is loaded and its kernels are compiled."""
    return peak_of_run(work, engine=LocalEngine(probes_per_pass=1 if work is train_probe_by_probe else None))


def peak_of_run(work: Callable[[Run, Batch], None], **options) -> int:
    """The same for a run with these options."""
    run, batch = ready(**options)
    run.weights.perturbed(next(iter(run.weights.names)), [Move((Term(1, 1.0),))])
    run.weights.advance([Move((Term(1, 0.0),))])
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading and compiling
    work(run, batch)
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def infer(run: Run, batch: Batch) -> None:
    for _ in range(3):
        run.engine.score(batch, [UNPERTURBED])


def train_one_pass(run: Run, _batch: Batch) -> None:
    for _ in range(3):
        estimate = measure(run, 0, run.config.eps).estimate
        run.weights.advance([move_of(run.config.rule, 0, run.config.steps, [estimate])])


def train_probe_by_probe(run: Run, batch: Batch) -> None:
    train_one_pass(run, batch)


def load_only(_run: Run, _batch: Batch) -> None:
    """Nothing more."""


def adam(run: Run, batch: Batch) -> None:
    """Back-propagation with Adam on the same batch, for the yardstick."""
    optimizer = torch.optim.Adam(run.model.parameters(), lr=1e-5)
    for _ in range(3):
        logits = run.model(**batch.inputs).logits[torch.arange(len(batch)), batch.mask_positions]
        torch.nn.functional.cross_entropy(logits[:, run.task.word_ids], batch.gold).backward()
        optimizer.step()
        optimizer.zero_grad()


MEMORY = {
    "loaded": load_only,
    "inference": infer,
    "step, one pass": train_one_pass,
    "step, probe by probe": train_probe_by_probe,
    "Adam": adam,
}


def memory() -> dict:
    found: dict[str, list[int]] = {name: [] for name in MEMORY}
    for name in [*MEMORY] * PROCESSES:  # one and the same differs by some percent
        command = [sys.executable, __file__, "--memory-of", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name].append(int(output.split()[-1]))
    peaks = {name: statistics.median(several) for name, several in found.items()}
    over = {name: peak / peaks["inference"] for name, peak in peaks.items()}
    return {
        "peak_megabytes": rounded({name: peak / 1e6 for name, peak in peaks.items()}),
        "over_inference": rounded(over, 3),
    }


def side_by_side(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Each call's seconds over several rounds, taking turns so that the machine's moods fall on all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def rounded(values: dict[str, float], digits: int = 1) -> dict[str, float]:
    return {name: round(value, digits) for name, value in values.items()}


if __name__ == "__main__":
    main()

"""What a direction an example costs on this machine's CPU, each figure a ratio measured side by side in one run.

    python benchmarks/low_rank.py       prints a table and writes benchmarks/results/low-rank-cpu.json

- step: a whole step of the embedded model with `--noise rank1 --directions-per example` (score, journal record, update
  along 64 directions), and one with the step's own direction, against plain forwards as `benchmarks/cpu.py` takes them;
- update: the move along 64 low-rank directions against one along a single normal one;
- memory: the peak of a process that takes such steps against one that only infers; medians of three each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from cpu import peak_of_run, ready, rounded, side_by_side
from machine import machine

from noback.journal import Journal, StepRecord
from noback.measuring import measure
from noback.replaying import header
from noback.rules import move_of
from noback.run import Run
from noback.tasks import Batch
from noback.values import UNPERTURBED, Move, Term

RESULTS = Path(__file__).parent / "results" / "low-rank-cpu.json"
ROUNDS = 7
PROCESSES = 3
WAYS = {
    "rank1, a direction an example": {"noise": "rank1", "directions_per": "example"},
    "rank1, a direction a step": {"noise": "rank1"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        options = WAYS.get(arguments.memory_of, {})
        print(peak_of_run(infer if arguments.memory_of == "inference" else train, **options))
        return
    results = {"machine": machine(), "steps": {name: step(**way) for name, way in WAYS.items()}}
    results |= {"update": update(), "memory": memory()}
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def step(**options) -> dict:
    run, batch = ready(**options)
    journal, taken = Journal.create(run.folder.journal, header(run)), 0
    before = run.folder.journal.stat().st_size

    def whole_step() -> None:
        nonlocal taken
        estimate = measure(run, 0, run.config.eps).estimate
        journal.append(StepRecord(taken, estimate.loss, estimate.slopes))
        run.weights.advance([move_of(run.config.rule, 0, run.config.steps, [estimate])])
        taken += 1

    double = Batch(
        {name: tensor.repeat(2, 1) for name, tensor in batch.inputs.items()},
        batch.mask_positions.repeat(2),
        batch.gold.repeat(2),
    )
    seconds = side_by_side(
        {
            "one forward of 2B": lambda: run.engine.score(double, [UNPERTURBED]),
            "two forwards of B": lambda: [run.engine.score(batch, [UNPERTURBED]) for _ in range(2)],
            "step": whole_step,
        },
        ROUNDS,
    )
    one, two, ours = seconds.values()
    bare = min(one, two, key=statistics.median)
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return {
        "batch": len(batch),
        "tokens": batch.inputs["input_ids"].shape[1],
        "directions": run.directions,
        "milliseconds": rounded({name: 1e3 * statistics.median(times) for name, times in seconds.items()}),
        "step_over_bare_forwards": round(statistics.median(ratios), 3),
        "journal_bytes_a_step": (run.folder.journal.stat().st_size - before) / taken,
    }


def update() -> dict:
    """Seconds of a move, and how many weights times directions it makes in one."""
    many, one = Move(tuple(Term(seed, 1e-9) for seed in range(64))), Move((Term(1, 1e-9),))
    ranked, normal = (ready(noise=noise)[0].weights for noise in ("rank1", "normal"))
    seconds = side_by_side(
        {"64 directions of rank 1": lambda: ranked.advance([many]), "a normal one": lambda: normal.advance([one])}
    )
    return {
        "weights": ranked.size,
        "milliseconds": rounded({name: 1e3 * statistics.median(times) for name, times in seconds.items()}),
    }


def infer(run: Run, batch: Batch) -> None:
    for _ in range(3):
        run.engine.score(batch, [UNPERTURBED])


def train(run: Run, _batch: Batch) -> None:
    for _ in range(3):
        estimate = measure(run, 0, run.config.eps).estimate
        run.weights.advance([move_of(run.config.rule, 0, run.config.steps, [estimate])])


def memory() -> dict:
    names = ["inference", *WAYS]
    found: dict[str, list[int]] = {name: [] for name in names}
    for name in names * PROCESSES:
        command = [sys.executable, __file__, "--memory-of", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name].append(int(output.split()[-1]))
    peaks = {name: statistics.median(several) for name, several in found.items()}
    over = {name: peak / peaks["inference"] for name, peak in peaks.items()}
    return {
        "peak_megabytes": rounded({name: peak / 1e6 for name, peak in peaks.items()}),
        "over_inference": rounded(over, 3),
    }


if __name__ == "__main__":
    main()

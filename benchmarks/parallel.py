"""Steps a second of one rank with one thread, and of two ranks with one thread each, in one run, in turn.

    python benchmarks/parallel.py [--rounds 1]

The embedded model and task, batch 64, as `noback train --readout words` has them. A figure is a process's own count of
seconds between its first recorded step after the checks of step 0 and its last. Writes
benchmarks/results/parallel.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

RESULTS = Path(__file__).parent / "results"
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    cases: dict[str, list[float]] = {"one rank": [], "two ranks, examples": [], "two ranks, points": []}
    flags: dict[str, list[str]] = {"one rank": [], "two ranks, examples": ["--workers", "2"]}
    flags["two ranks, points"] = ["--workers", "2", "--divide", "points"]
    for _ in range(rounds):
        for name, found in cases.items():
            found.append(steps_a_second(flags[name]))
            print(f"{name}: {found[-1]:.2f} steps/s", file=sys.stderr)
    middle = {name: statistics.median(found) for name, found in cases.items()}
    results = {
        "machine": machine(),
        "steps_a_second": {name: [round(one, 3) for one in found] for name, found in cases.items()},
        "times_one_rank": {name: round(one / middle["one rank"], 3) for name, one in middle.items()},
    }
    (RESULTS / "parallel.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["times_one_rank"]))


def steps_a_second(flags: list[str]) -> float:
    """Between the evaluations before and after the last steps of a run, whose time its metrics tell."""
    with tempfile.TemporaryDirectory() as parent:
        out = Path(parent) / "run"
        length = ["--readout", "words", "--steps", str(2 * STEPS), "--eval-every", str(STEPS)]
        subprocess.run(
            [sys.executable, "-m", "noback", "train", *length, "--out", str(out), *flags],
            check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
        )  # fmt: skip
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # The time of an evaluation's line is taken after it: both have one, so between them lie STEPS steps and one
    # evaluation, which the ranks share as well.
    seconds = {line["step"]: float(line["seconds"]) for line in lines if line["kind"] == "validation"}
    return STEPS / (seconds[2 * STEPS] - seconds[STEPS])


if __name__ == "__main__":
    main()

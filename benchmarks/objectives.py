"""Which objective gives a signal, and what eps does to it, by the commands of the README.

    python benchmarks/objectives.py                  the embedded reviews
    python benchmarks/objectives.py --sst2 FOLDER    SST-2 (train and dev files), 512 examples per label

Writes benchmarks/results/objectives-reviews.json or objectives-sst2.json after each command; each command runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine

RESULTS = Path(__file__).parent / "results"
SST2 = "--task sst2 --shots 512"
BUDGET = "--steps 500 --batch 64 --lr 1e-5"
COMMANDS = {
    "objectives-reviews.json": ["compare --steps 150", "epsilon"],
    "objectives-sst2.json": [
        f"compare {SST2} {BUDGET}",
        f"compare {SST2} {BUDGET} --objectives accuracy --eps 1e-2,1e-4",
        f"epsilon {SST2}",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    name = "objectives-sst2.json" if arguments.sst2 else "objectives-reviews.json"
    data = ["--data", str(arguments.sst2)] if arguments.sst2 else []
    results: dict = {"machine": machine(), "commands": []}
    for command in COMMANDS[name]:
        results["commands"].append(run(command, data))
        (RESULTS / name).write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def run(command: str, data: list[str]) -> dict:
    """One command's table; its folder and its paths stay out of the results file."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "noback", *command.split(), *data, "--json", "--out", str(Path(folder) / "out")]
        table = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    kept = {key: value for key, value in table.items() if key in ("rows", "recommendations", "reference", "forwards")}
    return {"command": f"noback {command}", "wall_seconds": round(time.monotonic() - began, 1), **kept}


if __name__ == "__main__":
    main()

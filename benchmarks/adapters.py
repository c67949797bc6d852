"""What LoRA, a prefix and the baselines reach on SST-2, and how a step of each compares with a full-parameter step.

    python benchmarks/adapters.py --sst2 FOLDER    accuracy (train and dev files, 512 examples per label), then steps
    python benchmarks/adapters.py                  steps only, on the embedded reviews

Writes adapters-sst2.json and adapters-step.json. Accuracies come from the commands that users run, each in
a process of its own; steps are timed side by side in one process, in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine

import noback
from noback.measuring import measure
from noback.rules import move_of
from noback.run import Run, drawn_data

RESULTS = Path(__file__).parent / "results"
SST2 = "--task sst2 --shots 512 --data-seed 13 --batch 64"
COMMANDS = (
    f"train --readout words {SST2} --adapter lora --steps 750",
    f"train --readout words {SST2} --adapter prefix --steps 750",
    f"baseline probe {SST2}",
    f"baseline adam {SST2} --steps 150",
    f"baseline adam {SST2} --steps 150 --adapter lora",
    f"baseline adam {SST2} --steps 150 --adapter prefix",
)
BATCHES = (8, 16, 32, 64)
ROUNDS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.sst2:
        results: dict = {"machine": machine(), "runs": []}
        for command in COMMANDS:
            results["runs"].append(run(command, arguments.sst2))
            (RESULTS / "adapters-sst2.json").write_text(json.dumps(results, indent=2) + "\n")
    steps = {"machine": machine(), "task": "reviews", "seconds_a_step": [timed(batch) for batch in BATCHES]}
    (RESULTS / "adapters-step.json").write_text(json.dumps(steps, indent=2) + "\n")
    print(json.dumps(steps, indent=2))


def run(command: str, data: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "noback", *command.split(), "--data", str(data), "--json"]
        words += ["--out", str(Path(folder) / "run")] if command.startswith("train") else []
        result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {"command": f"noback {command}", **{key: value for key, value in result.items() if key != "run"}}


def timed(batch: int) -> dict:
    """The median seconds of a step with each adapter, measured in turn, and the ratio of full to each."""
    adapters = {"full": noback.Full(), "lora": noback.Lora(), "prefix": noback.Prefix()}
    runs, seconds = {}, {name: [] for name in adapters}
    for name, adapter in adapters.items():
        config = noback.RunConfig(batch=batch, adapter=adapter, readout=None)
        runs[name] = Run(config)
        runs[name].task.use(drawn_data(dataclasses.replace(config, test_limit=8)))
    for round_ in range(ROUNDS + 2):
        for name, one in runs.items():
            began = time.perf_counter()
            estimate = measure(one, round_, one.config.eps).estimate
            one.weights.advance([move_of(one.config.rule, round_, one.config.steps, [estimate])])
            if round_ >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {f"full_over_{name}": round(medians["full"] / medians[name], 3) for name in ("lora", "prefix")}
    return {"batch": batch, **{name: round(value, 4) for name, value in medians.items()}, **ratios}


if __name__ == "__main__":
    main()

"""What noback reaches with the embedded model, by the commands of the README.

    python benchmarks/accuracy.py                  the embedded reviews
    python benchmarks/accuracy.py --sst2 FOLDER    SST-2 (train and dev files), 512 and 16 examples per label
    python benchmarks/accuracy.py --causal FOLDER  SST-2 with the causal model, whole and LoRA
    python benchmarks/accuracy.py --methods FOLDER SST-2 by other estimators and rules, 512 examples per label

Writes benchmarks/results/reviews.json, sst2.json, sst2-causal.json or methods.json. Each run is
`noback train --json` in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

RESULTS = Path(__file__).parent / "results"
REVIEWS = "--readout words --steps 250"  # MeZO as published; "" is the default
SST2 = "--readout words --task sst2 --data-seed 13 --steps 500 --batch 64 --eps 1e-3"

CAUSAL = "--readout words --model mini-causal --task sst2-causal --data-seed 13 --shots 512 --batch 32"
METHODS = "--readout words --task sst2 --data-seed 13 --shots 512 --batch 64 --test-limit 872"
TRIED = (
    "--estimator two_sided --rule sgd --steps 300 --lr 2e-5",
    "--estimator one_sided --schedule linear --steps 200",
    "--rule momentum --steps 300 --lr 2e-5",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, metavar="FOLDER")
    parser.add_argument("--causal", type=Path, metavar="FOLDER")
    parser.add_argument("--methods", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    runs, name = {REVIEWS: [], "": []}, "reviews.json"
    if arguments.sst2:
        data, name = ["--data", str(arguments.sst2)], "sst2.json"
        runs = {f"{SST2} --shots 512 --lr 1e-5": data, f"{SST2} --shots 16 --lr 2e-5": data}
    if arguments.causal:
        data, name = ["--data", str(arguments.causal)], "sst2-causal.json"
        runs = {
            f"{CAUSAL} --steps 500 --lr 1e-5": data,
            f"{CAUSAL} --adapter lora --steps 300 --lr 1e-3 --eps 1e-2": data,
        }
    if arguments.methods:
        data, name = ["--data", str(arguments.methods)], "methods.json"
        runs = dict.fromkeys((f"{METHODS} {method}" for method in TRIED), data)
    results = {"machine": machine(), "runs": [run(flags.split(), data) for flags, data in runs.items()]}
    (RESULTS / name).write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def run(flags: list[str], data: list[str]) -> dict:
    """One run's result; its folder and its paths stay out of the results file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "noback", "train", *flags, *data, "--json", "--out", str(Path(folder) / "run")]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {"command": " ".join(["noback train", *flags]), **{k: v for k, v in result.items() if k != "run"}}


if __name__ == "__main__":
    main()

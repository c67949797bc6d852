"""make fuzz: the long hostile suite, with a seed and counts; its results file says what was tried and what came of it.

python -m tests.hostile.fuzz --seed 1 --journals 100000 --inputs 5000 --snapshots 2000 --kills 200
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from noback.bench.machine import machine
from noback.embedded import MODELS
from tests.conftest import NEGATIVE, POSITIVE, tiny_model, write_rows
from tests.hostile.injecting import fuzz_failures, fuzz_kills
from tests.hostile.inputs import fuzz_inputs
from tests.hostile.journals import fuzz_journals
from tests.hostile.snapshots import fuzz_snapshots

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, data = made_model(folder / "model"), made_data(folder / "data")
        parts = {
            "journals": lambda: fuzz_journals(new(folder / "journals"), arguments.seed, arguments.journals),
            "snapshots": lambda: fuzz_snapshots(new(folder / "snapshots"), arguments.seed, arguments.snapshots),
            "inputs": lambda: fuzz_inputs(arguments.seed, arguments.inputs),
            "refused_calls": lambda: fuzz_failures(model, data, new(folder / "failures")),
            "kills": lambda: fuzz_kills(model, data, new(folder / "kills"), arguments.seed, arguments.kills),
        }
        found = {}
        for name, run in parts.items():
            began = time.monotonic()
            found[name] = {"outcomes": run(), "seconds": round(time.monotonic() - began, 1)}
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    asked = {name: value for name, value in vars(arguments).items() if name != "out"}
    values = {"command": "make fuzz", "asked": asked, "machine": machine(torch.device("cpu")), "found": found}
    arguments.out.write_text(json.dumps(values, indent=1) + "\n")
    print(f"nothing was wrong; {arguments.out}", file=sys.stderr)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("seed", 1), ("journals", 100_000), ("inputs", 5_000), ("snapshots", 2_000), ("kills", 200)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def made_model(folder: Path) -> Path:
    tiny_model("roberta").save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(MODELS["mini"]).save_pretrained(folder)
    return folder


def made_data(folder: Path) -> Path:
    rows = [{"sentence": text, "label": int(text in POSITIVE)} for text in (*POSITIVE, *NEGATIVE)]
    for split in ("train", "validation", "test"):
        write_rows(new(folder) / f"{split}.jsonl" if split == "train" else folder / f"{split}.jsonl", rows)
    return folder


if __name__ == "__main__":
    main()

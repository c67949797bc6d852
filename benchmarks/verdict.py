"""How often the verdict is right: short runs from far too small a step to diverging, and runs on labels drawn by lot.

    python benchmarks/verdict.py --data FOLDER --runs DIR          train what is missing in DIR, then judge
    python benchmarks/verdict.py --runs DIR --judge                judge the runs that are there

FOLDER holds sst2, trec and snli. DIR keeps the runs' folders, so that the command can be stopped and given again; the
verdict is a function of a folder, so another verdict needs no new runs. What became of a run is known from a test set
that the verdict never sees: gained or lost by three points of accuracy or more, or neither.
Writes benchmarks/results/verdict.json.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from machine import machine

from noback.folder import RunFolder
from noback.journal import read_journal
from noback.verdict import DIVERGING, LEARNING, NO_SIGNAL, verdict

RESULTS = Path(__file__).parent / "results"
POINTS = 0.03  # of accuracy: a gain or a loss that a test set of about a thousand can tell
USUAL = {"full": 2e-5, "lora": 5e-4}
TIMES = (0.005, 0.1, 1.0, 5.0, 50.0)  # the usual lr: from far too small to diverging
MIDDLE = (0.5, 2.0)  # on SST-2 as well: there such runs gain, and a share of 2 % needs many that did
SHOTS = {"sst2": (16, 32, 64, 128), "trec": (16, 20), "snli": (16, 64)}
COMMON = ["--readout", "words", "--batch", "16", "--steps", "60", "--eval-every", "10"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=Path, metavar="DIR", required=True)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (1: 96 runs and 30 with random labels)")
    parser.add_argument("--judge", action="store_true")
    arguments = parser.parse_args()
    if not arguments.judge:
        arguments.runs.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=2) as pool:  # each run has one thread
            list(pool.map(lambda flags: train(arguments.runs, *flags), planned(arguments)))
    results = {"machine": machine(), **judged(arguments.runs)}
    (RESULTS / "verdict.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({key: value for key, value in results.items() if key != "runs"}, indent=1))


def planned(arguments: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Each run's name and its flags, the seeds one after the other and within them in a drawn order."""
    lots = arguments.runs / "random-labels.tsv"
    if not lots.exists():
        with_random_labels(arguments.data / "sst2" / "train.tsv.gz", lots)
    found = []
    for seed in range(arguments.seeds):
        runs = []
        for task, shots in SHOTS.items():
            for k in shots:
                for adapter, usual in USUAL.items():
                    for times in TIMES + (MIDDLE if task == "sst2" else ()):
                        name = f"{task}-{k}-{adapter}-{times:g}-{seed}"
                        flags = f"--task {task} --shots {k} --adapter {adapter} --lr {times * usual:g} --seed {seed}"
                        runs.append((name, [*flags.split(), "--data", str(arguments.data / task)]))
        for k in (16, 64):
            for adapter, usual in USUAL.items():
                for times in (0.3, 1.0, 3.0):
                    for draw in range(3 if k == 16 else 2):
                        name = f"random-{k}-{adapter}-{times:g}-{draw}-{seed}"
                        flags = f"--task sst2 --shots {k} --adapter {adapter} --lr {times * usual:g} --test-limit 100"
                        drawn = f"--seed {seed} --data-seed {100 * seed + draw}"
                        runs.append((name, [*flags.split(), *drawn.split(), "--data", str(lots)]))
        random.Random(seed).shuffle(runs)
        found += runs
    return found


def with_random_labels(source: Path, target: Path) -> None:
    """The first sentences of SST-2 with labels drawn by lot: nothing can be learned that holds for other sentences."""
    draw = random.Random(0)
    with gzip.open(source, "rt", encoding="utf-8", newline="") as file, target.open("w", newline="") as out:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        out.write("sentence\tlabel\n")
        for _, row in zip(range(4000), rows, strict=False):
            out.write(f"{row['sentence']}\t{draw.randrange(2)}\n")


def train(runs: Path, name: str, flags: list[str]) -> None:
    """One run in a process of its own, from the start or from where it was stopped."""
    folder = runs / name
    begun = (folder / "run.toml").exists()
    if begun and any(line["kind"] in ("result", "diverged") for line in RunFolder(folder).read_metrics()):
        return
    verb = ["resume", str(folder)] if begun else ["train", *COMMON, *flags, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "noback", *verb], check=False, capture_output=True, text=True, env=environment
    )
    print(name, done.returncode, done.stderr.strip().splitlines()[-1:], file=sys.stderr, flush=True)


def judged(runs: Path) -> dict[str, Any]:
    """The verdict of each run beside what became of it, and the tables of both."""
    rows = [row for path in sorted(runs.iterdir()) if path.is_dir() for row in judge(path)]
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        table[row["truth"]][row["verdict"]] += 1
    gained = [row for row in rows if row["truth"] == "gained"]
    wrong = [row["name"] for row in gained if row["verdict"] == NO_SIGNAL or row["larger_lr"]]
    lots = [row for row in rows if row["truth"] == "random labels"]
    tripled = [row for row in rows if row["tripled"]]
    tested = [row for row in rows if row.get("best") is not None and row["truth"] != "random labels"]
    return {
        "counts": {truth: dict(words) for truth, words in sorted(table.items())},
        "gained": len(gained),
        "gained_but_no_signal_or_larger_lr": wrong,
        "random_labels": len(lots),
        "random_labels_but_learning": [row["name"] for row in lots if row["verdict"] == LEARNING],
        "loss_tripled": len(tripled),
        "loss_tripled_but_not_diverging": [row["name"] for row in tripled if row["verdict"] != DIVERGING],
        "chosen_weights": fmean(row["best"] for row in tested),
        "last_weights": fmean(row["final"] for row in tested),
        "runs": rows,
    }


def judge(path: Path) -> list[dict[str, Any]]:
    """A run as a row; none where it has not ended."""
    metrics, contents = RunFolder(path).read_metrics(), read_journal(path / "journal")
    ended = [line for line in metrics if line["kind"] in ("result", "diverged")]
    if not ended:
        return []
    found = verdict(contents, metrics)
    result = ended[-1] if ended[-1]["kind"] == "result" else {}
    losses = [line["loss"] for line in metrics if line["kind"] == "validation"]
    row = {key: result.get(key) for key in ("zero_shot", "final", "best", "best_step")}
    return [
        {
            "name": path.name,
            "truth": truth(path.name, result),
            "verdict": found.word,
            "advice": found.evidence[-1],
            "larger_lr": "or an lr of" in found.evidence[-1],
            "tripled": not result or losses[-1] > 3 * losses[0],
            **row,
        }
    ]


def truth(name: str, result: dict[str, Any]) -> str:
    """What became of a run, by the test set; of random labels nothing can."""
    if name.startswith("random-"):
        return "random labels"
    if not result:
        return "stopped: no numbers"
    change = result["final"] - result["zero_shot"]
    return "gained" if change >= POINTS else "lost" if change <= -POINTS else "neither"


if __name__ == "__main__":
    main()

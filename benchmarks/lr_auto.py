"""lr auto beside a grid of five rates, cell by cell: task x model x adapter x seed x rate.

    python benchmarks/lr_auto.py --data FOLDER --device cuda          a folder with one folder a task: sst2, trec, ...
    python benchmarks/lr_auto.py --data FOLDER --part 2/4             every fourth cell, in a file of its own
    python benchmarks/lr_auto.py --join                               the parts' files as one, and the table

Writes benchmarks/results/lr-auto.json, or lr-auto-2-of-4.json: one entry a cell. A cell that is there is not run again,
so the same command goes on where it was stopped. The rates of the grid are the usual one times 1/10, 1/3, 1, 3 and 10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from machine import machine

import noback
from noback.errors import Diverged, InputError, NoNumbers

RESULTS = Path(__file__).parent / "results"
FACTORS = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
AUTO = "auto"
MODELS = ("mini", "mini-causal")
ADAPTERS = ("full", "lora")
TASKS = ("reviews", "sst2", "sst5", "trec", "snli", "rte", "mnli")
MNLI = 'Suppose {premise} Can we infer that "{hypothesis}"? Yes, No, or Maybe? Answer:'  # as snli-causal asks
ALL_EXAMPLES = ("trec",)  # one of its labels has too few for --shots
KEPT = ("zero_shot", "best", "final", "best_step", "forwards", "screening_forwards", "seconds", "verdict")
OPTIONS = ("steps", "batch", "shots", "test_limit", "schedule")


def main() -> None:
    arguments = _parser().parse_args()
    part, parts = (int(number) for number in arguments.part.split("/"))
    path = RESULTS / ("lr-auto.json" if parts == 1 else f"lr-auto-{part}-of-{parts}.json")
    if arguments.join:
        found = sorted(RESULTS.glob("lr-auto-*-of-*.json"))
        tables = [json.loads(one.read_text()) for one in found]
        if len({json.dumps(one["options"]) for one in tables}) != 1:
            raise SystemExit(f"{len(found)} parts' files; expected one or more of the same options")
        rows = [row for one in tables for row in one["rows"]]
        write(path := RESULTS / "lr-auto.json", {**tables[0], "rows": rows})
    else:
        measure(path, arguments, part, parts)
    print(table_of(json.loads(path.read_text())))


def measure(path: Path, arguments: argparse.Namespace, part: int, parts: int) -> None:
    """Run the cells of a part that its file does not have yet."""
    options = {name: getattr(arguments, name) for name in OPTIONS}
    table: dict[str, Any] = {"machine": machine(), "options": options, "rows": []}
    if path.exists():
        table = json.loads(path.read_text())
        if table["options"] != options:
            raise SystemExit(f"{path} has cells of other options ({table['options']}); move it away first")
    named = [arguments.models, arguments.tasks, arguments.adapters, arguments.seeds]
    cells = list(product(*(one.split(",") for one in named), (AUTO, *FACTORS)))[part - 1 :: parts]
    done = {tuple(row["cell"]) for row in table["rows"]}
    for number, cell in enumerate(cells, start=1):
        if tuple(map(str, cell)) not in done:
            row = {"cell": list(map(str, cell)), **trained(cell, options, arguments)}
            table["rows"].append(row)
            write(path, table)
            print(f"{number}/{len(cells)} {' '.join(row['cell'])}: lr {row['lr']}, best {row['best']}", flush=True)


def trained(cell: tuple, options: dict, arguments: argparse.Namespace) -> dict:
    """One run: its rate, its accuracies and what it took; of one that diverged, the sentence."""
    model, task, adapter, seed, rate = cell
    if task != "reviews" and not arguments.data:
        raise SystemExit(f"task {task} needs --data, a folder with one folder a task")
    data = None if task == "reviews" else str(Path(arguments.data) / task)
    asked = {"task": task, "data": data, "readout": "words", **options}
    asked |= {"shots": None} if task in ALL_EXAMPLES else {}
    if model.endswith("causal"):
        asked |= {"template": MNLI} if task == "mnli" else {"task": f"{task}-causal"}
    lr = AUTO if rate == AUTO else float(f"{noback.RunConfig(adapter=adapter).usual_lr * rate:.2g}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            result = noback.train(
                model=model, adapter=adapter, lr=lr, seed=int(seed), device=arguments.device, out=out, **asked
            )
        except (Diverged, NoNumbers, InputError) as error:
            if isinstance(error, InputError) and lr != AUTO:  # what was asked for cannot be run at all
                raise
            return {"lr": rate_of(out), "best": None, "final": None, "gap": str(error)}
        taken = rate_of(out)
    return {"lr": taken, **{name: getattr(result, name) for name in KEPT}}


def rate_of(run: Path) -> float | None:
    """The learning rate of a run; None where none was found."""
    path = run / "run.toml"
    return tomllib.loads(path.read_text())["rule"]["lr"] if path.exists() else None


def table_of(table: dict) -> str:
    """For each task, model and adapter: auto beside the best of the grid, test accuracy in percent."""
    found: dict[tuple, dict[str, list]] = {}
    for row in table["rows"]:
        model, task, adapter, _, rate = row["cell"]
        found.setdefault((task, model, adapter), {}).setdefault(rate, []).append(row)
    lines = [
        "| task | model | adapter | seeds | auto | its lr | best of grid | its lr | difference | forwards of auto |",
        f"|{'---|' * 10}",
    ]
    differences = []
    for cell, rates in sorted(found.items()):
        means = {rate: mean_of(rows) for rate, rows in rates.items()}
        grid = [rate for rate in means if rate != AUTO and len(rates[rate]) == len(rates.get(AUTO, []))]
        if AUTO not in means or len(grid) < len(FACTORS):
            continue
        best = max(grid, key=lambda rate: means[rate])
        differences.append(means[AUTO] - means[best])
        lrs = "/".join("none" if row["lr"] is None else f"{row['lr']:.2g}" for row in rates[AUTO])
        forwards = statistics.mean(row.get("forwards") or 0 for row in rates[AUTO])
        lines.append(
            f"| {' | '.join(cell)} | {len(rates[AUTO])} | {means[AUTO]:.1f} | {lrs} | {means[best]:.1f} | "
            f"{rates[best][0]['lr']:.2g} | {differences[-1]:+.1f} | {forwards:,.0f} |"
        )
    diverged = sum("gap" in row for row in table["rows"] if row["cell"][-1] == AUTO)
    if differences:
        near = sum(one >= -1.5 for one in differences)
        lines.append(
            f"\n{near} of {len(differences)} cells within 1.5 points of the best of the grid; the worst "
            f"{min(differences):+.1f}, the mean {statistics.mean(differences):+.1f}; {diverged} runs of auto diverged "
            "or found no rate"
        )
    return "\n".join(lines)


def mean_of(rows: list[dict]) -> float:
    """The mean test accuracy of the best weights over the seeds; a run that diverged counts as nothing."""
    return 100 * statistics.mean(row["best"] if row["best"] is not None else 0.0 for row in rows)


def write(path: Path, table: dict) -> None:
    """Write a file as a whole: a process may be killed at any moment."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(table, indent=1) + "\n")
    fresh.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="a folder with one folder a task")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU where there is one)")
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="NAMES")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAMES")
    parser.add_argument("--adapters", default=",".join(ADAPTERS), metavar="NAMES")
    parser.add_argument("--seeds", default="0", metavar="NUMBERS")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th cell, from the I-th on")
    parser.add_argument("--join", action="store_true", help="join the parts' files and print the table")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shots", type=int, default=128)
    parser.add_argument("--test-limit", type=int, default=1000)
    parser.add_argument("--schedule", default="constant")
    return parser


if __name__ == "__main__":
    main()

"""What bfloat16 and eps do to a slope, and what a run reaches with each eps: where the usual eps of a type comes from.

    python benchmarks/precision.py                                    slopes on the embedded reviews, on a CPU
    python benchmarks/precision.py --device cuda --data FOLDER        on SST-2 (train and dev files), on a GPU
    python benchmarks/precision.py --device cuda --data FOLDER --steps 1000 --seeds 3      and runs with each eps
    python benchmarks/precision.py --only bfloat16 lora               the cases that hold each of these words

Writes benchmarks/results/precision.json after each case, in place of the case's earlier figures. Slopes are taken on
one batch, at weights that bfloat16 holds, the same for both types, and compared along the same directions with those of
float32 at the reference eps: `agreement` is their correlation through zero, as in `noback epsilon`, `difference` the
rms of the difference over the rms of the reference slopes. Float32 at the reference eps is scored a second time, so a
device that does not repeat itself shows there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import noback
from noback.bench.machine import machine
from noback.estimators import estimate
from noback.folder import RunFolder
from noback.measuring import outputs
from noback.measuring_eps import agreement
from noback.run import Run, drawn_data
from noback.values import Move, direction_seeds

RESULTS = Path(__file__).parent / "results" / "precision.json"
ADAPTERS = {"full": noback.Full(), "lora": noback.Lora(), "prefix": noback.Prefix()}
REFERENCE = {"full": 1e-3, "lora": 1e-3, "prefix": 3e-2}
LADDERS = {
    "full": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "lora": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "prefix": (1e-3, 1e-2, 3e-2, 1e-1, 3e-1),
}
DTYPES = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="SST-2, 512 examples per label; none: the reviews")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="of: a type, an adapter, slopes, runs")
    parser.add_argument("--directions", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0, help="steps of a run with each eps; 0: no runs")
    parser.add_argument("--seeds", type=int, default=1, help="runs with each eps")
    parser.add_argument("--commit", help="the commit to name in the results, where this is no checkout")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    where = {key: value for key, value in machine(torch.device(arguments.device)).items() if value is not None}
    where |= {"commit": arguments.commit} if arguments.commit else {}
    task = {"task": "sst2", "shots": 512, "data": str(arguments.data)} if arguments.data else {}
    base = noback.RunConfig(device=arguments.device, batch=arguments.batch, readout=None, **task)
    for adapter in ADAPTERS:
        chosen = [dtype for dtype in DTYPES if _asked(arguments.only, "slopes", dtype, adapter)]
        for case in slope_cases(base, adapter, chosen, arguments.directions):
            add(arguments.out, where, "slopes", case)
    for dtype, adapter, eps in run_cases() if arguments.steps else ():
        if _asked(arguments.only, "runs", dtype, adapter):
            config = with_options(base, dtype, adapter, eps)
            add(arguments.out, where, "runs", runs(config, arguments.steps, arguments.seeds))


def slope_cases(base: noback.RunConfig, adapter: str, dtypes: Sequence[str], directions: int):
    """The slopes of each type at each eps, against those of float32 at the reference eps."""
    if not dtypes:
        return
    opened = {dtype: ready(with_options(base, dtype, adapter, REFERENCE[adapter])) for dtype in DTYPES}
    same_weights(opened["bfloat16"], opened["float32"])
    anchor = slopes(opened["float32"], REFERENCE[adapter], directions)
    for dtype in dtypes:
        began = time.monotonic()
        rows = [{"eps": eps, **compared(slopes(opened[dtype], eps, directions), anchor)} for eps in LADDERS[adapter]]
        yield {
            "case": f"{dtype} {adapter}", "task": base.task, "batch": base.batch, "directions": directions,
            "reference_eps": REFERENCE[adapter], "reference_rms": rms(anchor),
            "wall_seconds": round(time.monotonic() - began, 1), "rows": rows,
        }  # fmt: skip


def with_options(base: noback.RunConfig, dtype: str, adapter: str, eps: float) -> noback.RunConfig:
    return dataclasses.replace(base, dtype=dtype, adapter=ADAPTERS[adapter], estimator=noback.TwoSided(eps=eps))


def ready(config: noback.RunConfig) -> Run:
    run = Run(config)
    run.task.use(drawn_data(config))
    return run


def same_weights(source: Run, target: Run) -> None:
    """Let every parameter of a float32 run, tuned or frozen, be that of a bfloat16 run."""
    parameters = dict(source.model.named_parameters())
    with torch.no_grad():
        for name, tensor in target.model.named_parameters():
            tensor.copy_(parameters[name])


def losses(run: Run, points: list[Move]) -> list[float]:
    found, gold = outputs(run, 0, points)
    return [run.loss(output, gold) for output in found]


def slopes(run: Run, eps: float, directions: int) -> list[float]:
    """The slopes of the first batch along each direction, one direction at a time as in a run."""
    estimator = noback.TwoSided(eps=eps)
    found = []
    for number in range(directions):
        seeds = direction_seeds(run.config.seed, number, 1)
        found += estimate(estimator, seeds, partial(losses, run)).slopes
    return found


def compared(found: Sequence[float], anchor: Sequence[float]) -> dict:
    apart = [one - other for one, other in zip(found, anchor, strict=True)]
    return {"agreement": agreement(found, anchor), "difference": rms(apart) / rms(anchor), "rms": rms(found)}


def rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def run_cases():
    """Float32 at the reference eps, then bfloat16 at each."""
    for adapter, ladder in LADDERS.items():
        yield "float32", adapter, REFERENCE[adapter]
        for eps in ladder:
            yield "bfloat16", adapter, eps


def runs(config: noback.RunConfig, steps: int, seeds: int) -> dict:
    """Test accuracy before, at the end and at the best look, and the noise of a slope, one a seed."""
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = noback.train(dataclasses.replace(config, steps=steps, seed=seed), Path(folder) / "run")
            noise = [line for line in RunFolder(result.run).read_metrics() if line.get("kind") == "slope_noise"]
        kept = {"seed": seed, "zero_shot": result.zero_shot, "final": result.final, "best": result.best}
        kept |= {"best_step": result.best_step, "mean_abs_slope": result.mean_abs_slope, "seconds": result.seconds}
        noise = {key: noise[-1][key] for key in ("slope", "repeat", "two_eps")} if noise else None
        found.append({**kept, "slope_noise": noise})
    settings = {"task": config.task, "batch": config.batch, "steps": steps, "lr": config.lr}
    means = {f"mean_{at}": sum(one[at] for one in found) / seeds for at in ("zero_shot", "final", "best")}
    return {"case": f"{config.dtype} {config.adapter.kind} eps {config.eps:g}", **settings, **means, "seeds": found}


def add(out: Path, where: dict, part: str, case: dict) -> None:
    """Put a case into the results file, in place of an earlier one; figures from elsewhere leave it."""
    results = json.loads(out.read_text()) if out.exists() else {}
    before, now = ({**one, "date": None} for one in (results.get("machine", {}), where))
    if before != now:
        results = {}
    kept = [one for one in results.get(part, []) if one["case"] != case["case"]]
    results = {"machine": where, "slopes": [], "runs": [], **results, part: [*kept, case]}
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(case), flush=True)


def _asked(only: Sequence[str], *words: str) -> bool:
    return all(word in words for word in only)


if __name__ == "__main__":
    main()

"""What a causal step gains where prefixes are shared, and where the layers below the first tuned one are run once.

    python benchmarks/prefixes.py --sst2 FOLDER    SST-2 as the data; without it the embedded reviews

Writes prefixes.json. The ways of a case are timed side by side in one process, in turn, on the same batches and from
the same model; a step is its scores and its move. The figures are medians, and the ratios are of medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import torch
from machine import machine

import noback
from noback.engines import Local
from noback.measuring import measure
from noback.rules import move_of
from noback.run import Run, drawn_data
from noback.values import Move, Term

RESULTS = Path(__file__).parent / "results"
SHOWN = {"demonstrations": 8}
WHOLE = "prefixes, every layer tuned"  # what a step takes where not only the upper half of the layers is tuned
UPPER = ("none", "layers", "prefixes", "all", WHOLE)
CASES = {
    "8 demonstrations, batch 16": (("none", "prefixes"), SHOWN | {"batch": 16}),
    "8 demonstrations, batch 16, upper half of the layers tuned": (
        UPPER,
        SHOWN | {"batch": 16, "adapter": noback.Full(tune="last:4")},
    ),
    "8 demonstrations, batch 64": (("none", "prefixes"), SHOWN | {"batch": 64}),
    "8 demonstrations, batch 64, upper half of the layers tuned": (
        UPPER,
        SHOWN | {"batch": 64, "adapter": noback.Full(tune="last:4")},
    ),
    "no demonstrations, batch 16": (("none", "prefixes"), {"batch": 16}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=9, help="steps of a batch of 64; smaller ones have more")
    arguments = parser.parse_args()
    task = {"task": "sst2-causal", "data": str(arguments.sst2)} if arguments.sst2 else {"task": "reviews-causal"}
    base = noback.RunConfig(model="mini-causal", shots=64, test_limit=8, readout=None, **task)
    cases = []
    for name, (ways, more) in CASES.items():
        config = dataclasses.replace(base, **more)
        rounds = arguments.rounds * 64 // config.batch
        cases.append({"case": name, "rounds": rounds, **timed(ways, config, rounds)})
        print(json.dumps(cases[-1]), flush=True)
    results = {"machine": machine(), "task": base.task, "model": base.model, "cases": cases}
    (RESULTS / "prefixes.json").write_text(json.dumps(results, indent=2) + "\n")


def timed(ways: tuple[str, ...], config: noback.RunConfig, rounds: int) -> dict:
    """The median seconds of a step each way, the ratios to the plain way, and how far the scores are apart."""
    run = made(config)
    whole = made(dataclasses.replace(config, adapter=noback.Full())) if WHOLE in ways else run
    runs = {way: whole if way == WHOLE else run for way in ways}
    engines = {
        way: Local(one.model, one.weights, one.task.word_ids, share="prefixes" if way == WHOLE else way)
        for way, one in runs.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    points = [Move((Term(0, side * run.config.eps),)) for side in (1.0, -1.0)]
    first = {way: torch.stack(engines[way].score(run.batch(0), points)) for way in ways if way != WHOLE}
    apart = {way: (scores - first["none"]).abs().max() for way, scores in first.items()}
    tokens = engines["all" if "all" in ways else ways[-1]].tally
    for step in range(rounds + 1):
        for way, engine in engines.items():
            run = runs[way]
            run.engine = engine
            began = time.perf_counter()
            estimate = measure(run, step, run.config.eps).estimate
            run.weights.advance([move_of(run.config.rule, step, run.config.steps, [estimate])])
            if step:  # the first warms up
                seconds[way].append(time.perf_counter() - began)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "seconds_a_step": {way: round(value, 4) for way, value in medians.items()},
        "times_faster_than_none": {way: round(medians["none"] / value, 2) for way, value in medians.items()},
        **({"all_over_prefixes": round(medians["prefixes"] / medians["all"], 2)} if "all" in ways else {}),
        **({"all_over_every_layer_tuned": round(medians[WHOLE] / medians["all"], 2)} if WHOLE in ways else {}),
        "largest_difference_of_a_score": {way: float(f"{float(value):.2g}") for way, value in apart.items()},
        "one_step": dataclasses.asdict(tokens),
    }


def made(config: noback.RunConfig) -> Run:
    run = Run(config)
    run.task.use(drawn_data(config))
    return run


if __name__ == "__main__":
    main()

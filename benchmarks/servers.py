"""What a step over an inference server takes beside the same scoring requests with adapters that stay as they are.

    python -m tests.servers.starting sglang MODEL --context-length 512 --max-loras-per-batch 4 --lora-target-modules \\
        q_proj k_proj v_proj o_proj gate_proj up_proj down_proj
    python -m tests.servers.starting vllm MODEL
    in another shell, for two ranks with --tp 2; MODEL is a copy of the embedded mini-causal. Then:
    python benchmarks/servers.py --engine ENGINE --url URL --model MODEL --name NAME
    python benchmarks/servers.py ... --rounds 0 --sst2 FOLDER      a run of 400 steps on SST-2 in place of the step

Writes servers.json, under the name that is given, beside what other calls found. In each round a step (two points
published, scored in one request, retired; the move of the weights) and a bare request (the same prompts under two
adapters that stay) follow one another in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from machine import machine

import noback
from noback.engines.servers.client import Background
from noback.engines.servers.remote import asks_of
from noback.engines.servers.server import Copy
from noback.measuring import measure
from noback.rules import move_of
from noback.run import Run, drawn_data
from noback.training import train
from noback.values import Move, Term

RESULTS = Path(__file__).parent / "results"
EPS, LR = 1e-2, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", help="of the server in the results: sglang, sglang-tp2, vllm (the engine's)")
    parser.add_argument("--sst2", type=Path, metavar="FOLDER", help="train on SST-2 too")
    parser.add_argument("--rounds", type=int, default=25, help="of steps and bare requests; 0: none")
    arguments = parser.parse_args()
    task = {"task": "sst2-causal", "data": str(arguments.sst2)} if arguments.sst2 else {"task": "reviews-causal"}
    options = {"model": arguments.model, "adapter": "lora", "engine": arguments.engine, "url": arguments.url, **task}
    if arguments.rounds:
        found = timed(config_of(batch=64, **options), arguments.rounds)
        write(arguments.name or arguments.engine, "step", {"task": task["task"], **found})
    if arguments.sst2:
        found = tuned(config_of(batch=32, steps=400, eval_every=200, **options))
        write(arguments.name or arguments.engine, "run", found)


def write(server: str, what: str, found: dict) -> None:
    """Put what was found of a server into the results, beside what they hold."""
    path = RESULTS / "servers.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results.setdefault(server, {})[what] = {"machine": machine(), **without_places(found)}
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(server, what, json.dumps(results[server][what], indent=1), flush=True)


def without_places(found):
    """Results without the folders of this machine: of a model and of data, the last name."""
    if isinstance(found, dict):
        return {
            name: Path(value).name if name in ("model", "data") and isinstance(value, str) else without_places(value)
            for name, value in found.items()
        }
    return found


def config_of(**options) -> noback.RunConfig:
    from noback.keywords import config_with

    return config_with(None, {"eps": EPS, "lr": LR, "readout": "words", **options})


def timed(config: noback.RunConfig, rounds: int) -> dict:
    """Medians of steps and bare requests in turn."""
    run = Run(config)
    run.task.use(drawn_data(config))
    about = run.engine.ready()
    bare = Bare(run)
    seconds: dict[str, list[float]] = {"step": [], "bare request": []}
    for step in range(rounds + 3):
        batch = run.batch(step)
        begun = time.perf_counter()
        measured = measure(run, step, EPS)
        run.weights.advance([move_of(run.config.rule, step, rounds + 3, [measured.estimate])])
        between = time.perf_counter()
        bare.score(batch)
        ended = time.perf_counter()
        if step >= 3:  # what is published and compiled at first
            seconds["step"].append(between - begun)
            seconds["bare request"].append(ended - between)
    bare.end()
    medians = {name: round(statistics.median(found), 4) for name, found in seconds.items()}
    ratio = statistics.median(one / other for one, other in zip(*seconds.values(), strict=True))
    return {"server": about, "batch": config.batch, "rounds": rounds, **medians, "ratio": round(ratio, 3)}


class Bare:
    """The same requests under two adapters that stay."""

    def __init__(self, run: Run) -> None:
        self._background, self._server, self._words = Background(), run.config.engine.servers()[0], run.task.word_ids
        self._names = ["noback-bare-0", "noback-bare-1"]
        self._background.run(self._server.about())
        for name, coefficient in zip(self._names, (EPS, -EPS), strict=True):
            point = [Move((Term(3, coefficient),))]
            tensors = {each: run.weights.perturbed(each, point)[0] for each in run.weights.names}
            copy = Copy(*run.config.adapter.published(run.model, tensors))
            self._background.run(self._server.publish(name, copy))

    def score(self, batch) -> None:
        asks = sorted(asks_of(batch, self._words), key=lambda ask: ask.prompt)
        self._background.run(self._server.score([ask._replace(adapter=name) for name in self._names for ask in asks]))

    def end(self) -> None:
        for name in self._names:
            self._background.run(self._server.retire(name))
        self._background.run(self._server.close())
        self._background.end()


def tuned(config: noback.RunConfig) -> dict:
    """A run's figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder) / "run")
    return {
        "config": config.recorded(), "zero_shot": result.zero_shot, "best": result.best, "best_step": result.best_step,
        "calibrated": result.calibrated, "seconds": result.seconds,
    }  # fmt: skip


if __name__ == "__main__":
    main()

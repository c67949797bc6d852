"""What a step of a large model would take on many GPUs, worked out from measured figures and stated assumptions.

    python benchmarks/large_models.py

Reads benchmarks/results/gpu.json (one H200), writes benchmarks/results/large-models.json and the tables of
docs/concepts/large-models.md. Nothing is run on a GPU: a figure here is arithmetic, and a simulation with a fixed seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "concepts" / "large-models.md"

BYTES = 2  # of a bfloat16
POINTS = 2  # of a step with one direction
EXAMPLES, TOKENS = 64, 400  # of a step's batch
GPUS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Assumed:
    """What is not measured here; each can be replaced by what your machines do."""

    memory: float = 141e9  # bytes of a GPU (H200)
    usable: float = 0.9  # of it
    gpus_a_machine: int = 8
    inside: float = 360e9  # bytes/s of a GPU to others of its machine (NVLink 450e9, of which 80 %)
    between: float = 40e9  # bytes/s of a GPU to other machines (400 Gbit/s, of which 80 %)
    sum_latency: float = 20e-6  # s of a sum over the GPUs of a machine, however small
    hop: float = 50e-6  # s of a small message over TCP
    adam_bytes: int = 16  # a weight: bfloat16 weight and gradient, float32 weight and two moments
    hours_between_failures: float = 50_000.0  # of one GPU: some 400 in 54 days of 16,384 (Llama 3's report)
    notice: float = 30.0  # s until a failure is seen
    start: float = 120.0  # s to start processes and read the weights
    snapshot_every: int = 1000  # steps
    jitter: float = 0.02  # of a rank's time: its standard deviation
    stall: float = 1e-5  # chance that a rank stands still in a step
    stall_seconds: float = 1.0


@dataclass(frozen=True)
class Measured:
    """What one H200 did with OPT-13B in bfloat16."""

    flops: float  # a second, of bare forwards at 16 x 400
    overhead: float  # s a weight that a step takes beyond its forwards, at 16 x 48
    activations: float  # bytes a token and unit of width, of inference at 16 x 400
    sweep: float  # bytes/s read and written by an update of all weights


@dataclass(frozen=True)
class Model:
    """A decoder's shape; `gates`: matrices of its feed-forward part; `tied`: whether the readout is the embedding."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    words: int
    gates: int
    tied: bool

    @property
    def layer(self) -> int:
        """Weights of a layer's matrices."""
        keys = self.width * self.key_heads // self.heads
        return 2 * self.width**2 + 2 * self.width * keys + self.gates * self.width * self.inner

    @property
    def weights(self) -> int:
        """All but vectors, which are a few in a thousand."""
        return self.layers * self.layer + (1 if self.tied else 2) * self.words * self.width


MODELS = (
    Model("OPT-30B", 48, 7168, 28672, 56, 56, 50272, 2, tied=True),
    Model("OPT-66B", 64, 9216, 36864, 72, 72, 50272, 2, tied=True),
    Model("Llama-70B", 80, 8192, 28672, 64, 8, 128256, 3, tied=False),
    Model("Llama-405B", 126, 16384, 53248, 128, 8, 128256, 3, tied=False),
)
OPT_13B = Model("OPT-13B", 40, 5120, 20480, 40, 40, 50272, 2, tied=True)


def measured(gpu: Mapping[str, Any]) -> Measured:
    """The figures of OPT-13B in a results file."""

    def case(tokens: int) -> tuple[dict[str, Any], Any]:
        (found,) = [
            one
            for one in gpu["cases"]
            if (one["case"]["shape"], one["case"]["tokens"], one["case"]["adapter"]) == ("opt-13b", tokens, "full")
        ]
        return {one["contender"]: one for one in found["contenders"]}, found

    (short, of_short), (long, of_long) = case(48), case(400)
    weights, examples = of_long["case"]["parameters"], of_long["case"]["batch"]
    return Measured(
        flops=2 * weights * POINTS * examples * 400 / (long["forwards"]["milliseconds"] / 1e3),
        overhead=(short["noback"]["milliseconds"] - short["forwards"]["milliseconds"]) / 1e3 / weights,
        activations=(long["forwards"]["peak_bytes"] - BYTES * weights) / (examples * 400) / OPT_13B.width,
        sweep=of_short["sweep"]["noback_gigabytes_a_second"] * 1e9,
    )


def memory(model: Model, shard: int, tokens: float, seen: Measured) -> float:
    """Bytes of a GPU: its weights, one matrix at two points, and the activations of the tokens that it scores.

    Embeddings and the readout are whole on every rank.
    """
    layers, matrix = model.layers * model.layer, model.width * model.inner
    held = BYTES * (layers / shard + model.weights - layers) + POINTS * BYTES * matrix / shard
    return held + tokens * seen.activations * model.width


def step(model: Model, gpus: int, seen: Measured, assumed: Assumed) -> dict[str, Any] | None:
    """One step of two points, the model on as few GPUs as hold it; None where a machine's do not."""
    shard = 1
    while memory(model, shard, POINTS * EXAMPLES * TOKENS * shard / gpus, seen) > assumed.usable * assumed.memory:
        shard *= 2
    if shard > min(gpus, assumed.gpus_a_machine):
        return None
    groups = gpus // shard
    tokens = POINTS * EXAMPLES * TOKENS / groups
    reading = BYTES * model.weights / shard / seen.sweep
    forwards = max(2 * model.weights * tokens / shard / seen.flops, reading)
    exchanged = tokens * model.width * BYTES
    each = (shard - 1) * exchanged / assumed.inside + assumed.sum_latency  # parts are gathered, then added in order
    sums = 2 * model.layers * each if shard > 1 else 0.0
    overhead = seen.overhead * model.weights / shard
    gather = (groups - 1) * assumed.hop
    return {
        "model": model.name,
        "gpus": gpus,
        "mesh": f"{shard} x {groups}",
        "memory": memory(model, shard, tokens, seen),
        "forwards": forwards,
        "overhead": overhead,
        "sums": sums,
        "gather": gather,
        "sent": POINTS * EXAMPLES * 8 / groups if groups > 1 else 0.0,
        "step": forwards + overhead + sums + gather,
    }


def adam(model: Model, gpus: int, seen: Measured, assumed: Assumed) -> dict[str, Any]:
    """A step of Adam with FSDP: the faster of all spread over all GPUs, and over those of each machine alone.

    In Adam's favour: its products run at the rate of bare forwards, and all it sends goes beside them where it can.
    """
    tokens = EXAMPLES * TOKENS / gpus
    working = 2 * BYTES * model.layer + tokens * model.width * (BYTES * model.layers + 34)
    computed = 8 * model.weights * tokens / seen.flops  # forward, again, backward
    ways = []
    for spread in sorted({min(gpus, assumed.gpus_a_machine), gpus}):
        copies = gpus // spread
        shared = 3 * BYTES * model.weights * (spread - 1) / spread  # weights twice, gradients once
        summed = 2 * BYTES * model.weights / spread * (copies - 1) / copies  # gradients, between the copies
        # What comes from other machines comes over all of a machine's links at once, and is passed on inside.
        within = spread <= assumed.gpus_a_machine
        speed = assumed.inside if within else min(assumed.inside, assumed.gpus_a_machine * assumed.between)
        update = 2 * assumed.adam_bytes * model.weights / spread / seen.sweep
        held = assumed.adam_bytes * model.weights / spread + working
        taken = max(computed, shared / speed + summed / assumed.between) + update
        ways.append({"spread": spread, "memory": held, "sent": shared + summed, "step": taken})
    fitting = [way for way in ways if way["memory"] <= assumed.usable * assumed.memory]
    return {**min(fitting or ways[-1:], key=lambda way: way["step"]), "fits": bool(fitting)}


def simulated(groups: int, compute: float, replayed: float, assumed: Assumed, steps: int = 400) -> dict[str, float]:
    """Where the time of a run goes on so many ranks of one GPU each; seconds a step.

    `compute`: a rank's own work, the same for any number of ranks (each scores as many examples); `replayed`: what a
    step takes to be made again from the journal.
    """
    chance = np.random.default_rng(groups)
    slowest = np.empty(steps)
    for index in range(steps):
        times = compute * (1 + assumed.jitter * chance.standard_normal(groups))
        times += assumed.stall_seconds * (chance.random(groups) < assumed.stall)
        slowest[index] = times.max()
    waiting = float(slowest.mean()) - compute
    ring, tree = (groups - 1) * assumed.hop, 2 * math.log2(groups) * assumed.hop
    one = compute + waiting + ring
    failures = one * groups / (assumed.hours_between_failures * 3600)  # a step
    lost = failures * (assumed.notice + assumed.start + assumed.snapshot_every / 2 * replayed)
    return {
        "ranks": groups, "compute": compute, "waiting": waiting, "ring": ring, "tree": tree, "lost": lost,
        "useful": compute / (one + lost), "useful_tree": compute / (compute + waiting + tree + lost),
        "hours_between_failures": assumed.hours_between_failures / groups,
    }  # fmt: skip


def results(gpu: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of the page."""
    seen, assumed = measured(gpu), Assumed()
    steps = [
        {"model": model.name, "gpus": gpus}
        | (step(model, gpus, seen, assumed) or {})
        | {"adam": adam(model, gpus, seen, assumed)}
        for model in MODELS
        for gpus in GPUS
    ]  # fmt: skip
    one = MODELS[0]  # fits on one GPU: a rank is a GPU
    compute = 2 * one.weights * POINTS * 4 * TOKENS / seen.flops + seen.overhead * one.weights
    replayed = 2 * BYTES * one.weights / seen.sweep
    return {
        "gpu_commit": gpu["machine"]["commit"],
        "gpu": gpu["machine"]["gpu"],
        "measured": asdict(seen),
        "assumed": asdict(assumed),
        "check": {"formula": memory(OPT_13B, 1, POINTS * 16 * TOKENS, seen), "measured": _peak(gpu)},
        "steps": steps,
        "simulated": [simulated(ranks, compute, replayed, assumed) for ranks in (8, 64, 256, 1024, 4096, 16384)],
    }


def _peak(gpu: Mapping[str, Any]) -> float:
    (found,) = [one for one in gpu["cases"] if (one["case"]["shape"], one["case"]["tokens"]) == ("opt-13b", 400)]
    return float(next(one["peak_bytes"] for one in found["contenders"] if one["contender"] == "noback"))


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """The page's tables by name."""
    return {
        "steps": _steps(found["steps"]),
        "adam": _adam(found["steps"]),
        "simulation": _simulation(found["simulated"]),
    }


def _steps(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["model", "GPUs", "shards x ranks", "GB a GPU", "forwards", "noise, update", "sums", "step", "sent a rank"]
    times = ("forwards", "overhead", "sums", "step")
    return _table(head, [
        [row["model"], str(row["gpus"]), row["mesh"], _giga(row["memory"]), *(_seconds(row[key]) for key in times),
         f"{row['sent']:.0f} B"]
        if "mesh" in row else [row["model"], str(row["gpus"]), "does not fit", *["-"] * 6]
        for row in rows
    ])  # fmt: skip


def _adam(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["model", "GPUs", "GB a GPU: noback", "Adam", "spread over", "GB sent a GPU", "a step: noback", "Adam"]
    return _table(head, [
        [row["model"], str(row["gpus"]), _giga(row["memory"]) if "mesh" in row else "does not fit",
         _giga(other["memory"]), str(other["spread"]) if other["fits"] else "does not fit", _giga(other["sent"]),
         _seconds(row["step"]) if "mesh" in row else "-",
         _seconds(other["step"]) if other["fits"] else "-"]
        for row in rows
        for other in [row["adam"]]
    ])  # fmt: skip


def _simulation(rows: Sequence[Mapping[str, Any]]) -> str:
    shares = ("waiting", "ring", "tree", "lost")
    head = ["ranks", "slowest rank", "ring", "tree", "failures", "useful: ring", "tree", "hours between failures"]
    return _table(head, [
        [f"{row['ranks']:,}", *(f"{100 * row[key] / row['compute']:.1f} %" for key in shares),
         *(f"{100 * row[key]:.0f} %" for key in ("useful", "useful_tree")), f"{row['hours_between_failures']:,.1f}"]
        for row in rows
    ])  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    )


def _giga(number: float) -> str:
    return f"{number / 1e9:.0f}"


def _seconds(number: float) -> str:
    return f"{number:.2f} s" if number >= 0.1 else f"{1e3 * number:.0f} ms"


def written(page: str, made: Mapping[str, str]) -> str:
    """The page with its tables; each stands between two comments that name it."""
    for name, table in made.items():
        begin, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = before + begin + table + end + rest.split(end, 1)[1]
    return page


def main() -> None:
    found = results(json.loads((RESULTS / "gpu.json").read_text()))
    (RESULTS / "large-models.json").write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), tables(found)))
    print(json.dumps({name: len(table.splitlines()) for name, table in tables(found).items()}))


if __name__ == "__main__":
    main()

"""The health of a run: what its slopes and updates say, and what to do about slopes that are zero.

Everything here is computed from numbers that a run already has; no torch, so that a report can read it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from noback.journal import Contents
from noback.json_text import has_numbers

ENOUGH_STEPS = 20  # below this, neither slopes nor losses say anything
DOMINATED = 0.5  # a share of zero slopes above this is warned of
SLOPE_UNIT = "loss per unit"  # of slopes, where a journal says nothing else
NOISY = 0.5  # so is a slope that differs by a larger share at twice the eps


def slope_figures(slopes: Sequence[float]) -> dict[str, float]:
    """The share of slopes that are exactly zero, and the mean size and range of all slopes: zeros count."""
    sizes = [abs(slope) for slope in slopes] or [0.0]
    return {
        "zero_slope_share": sum(slope == 0.0 for slope in slopes) / len(sizes),
        "mean_abs_slope": sum(sizes) / len(sizes),
        "min_abs_slope": min(sizes),
        "max_abs_slope": max(sizes),
    }


def agreement_figures(halves: Sequence[tuple[float, float]]) -> dict[str, float]:
    """How far the slopes of two halves of a batch agree (1: they are one), and signal over noise of the whole slope.

    Halves share the direction and differ in their examples: their product is signal, their difference is noise.
    """
    together = sum(a * b for a, b in halves)
    size = math.sqrt(sum(a * a for a, _ in halves) * sum(b * b for _, b in halves))
    noise = sum((a - b) ** 2 for a, b in halves) / 4
    if size == 0.0:
        return {}
    figures = {"agreement": together / size}
    if noise > 0.0:
        figures["signal_to_noise"] = math.sqrt(max(together, 0.0) / noise)
    return figures


def noise_figures(scored: Sequence[tuple[float, float, float]], slopes: Sequence[float]) -> dict[str, float]:
    """How far a slope is from itself when scored again and at twice the eps: rms, over the rms of the run's slopes.

    `scored` holds a direction's slope, the same points scored once more, and the slope at twice the eps. One slope may
    be near zero by chance, so what is usual is taken from `slopes`, which are more.
    """
    usual = _rms(slopes)
    again, doubled = ([scores[place] - scores[0] for scores in scored] for place in (1, 2))
    if not scored or usual == 0.0 or not math.isfinite(_rms([usual, *again, *doubled])):
        return {}
    return {"directions": len(scored), "slope": usual, "repeat": _rms(again) / usual, "two_eps": _rms(doubled) / usual}


def tie_advice(
    share: float, eps: float, batch: int, directions: int, objective: str = "", *, adapting: float | None = None
) -> str:
    """What helps where most slopes are zero, with the share to expect if flips of answers are independent.

    `adapting` is the most that eps may be raised to where `--adapt-ties` is on; None: it is off.
    """
    other = "" if objective == "reward" else "--objective cross_entropy"  # a reward has no smooth kin
    told = f"{share:.0%} of the slopes are exactly zero at eps {eps:g}, batch {batch}: those steps learn nothing. "
    if adapting is not None:
        return told + _beyond_adapting(eps, adapting, batch) + (f", or {other}" if other else "")
    if share == 1.0:
        told += "Try an eps ten times larger (--adapt-ties raises it by itself)"
        return told + (f", or {other}" if other else "")
    return told + (
        f"A slope is not zero as soon as one answer flips, so four times the batch ({4 * batch}) or eps ({4 * eps:g}) "
        f"gives about {share**4:.0%} zero slopes, four times the directions ({4 * directions}) about {share**4:.0%} "
        "of steps without any; --adapt-ties raises eps by itself" + (f"; {other} has none" if other else "")
    )


def _beyond_adapting(eps: float, largest: float, batch: int) -> str:
    """What helps where eps is raised by itself already."""
    if eps < largest:
        return f"eps is raised by itself, up to {largest:g}: begin with a larger --eps, or try a batch of {4 * batch}"
    return (
        f"eps was raised by itself as far as it may: try a larger limit (--set adapt_ties.largest={10 * largest:g}), "
        f"a batch of {4 * batch}"
    )


def on_the_way(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What was measured on the way: agreement of halves, lengths of steps, noise of slopes.

    Only people read it. It is of the steps that a process took without a break, so it may differ where a run was
    interrupted; the verdict does not depend on it.
    """
    dtype = str(contents.header.get("config", {}).get("dtype", ""))
    return (*_agreement(metrics), *_updates(metrics), *_noise(metrics, dtype))


def _agreement(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The agreement of the halves over all windows, each counted by its slopes."""
    needed = ("slopes", "zero_slope_share", "agreement")
    windows = [line for line in metrics if line.get("kind") == "health" and has_numbers(line, *needed)]
    alive = [line["slopes"] * (1 - line["zero_slope_share"]) for line in windows]  # zero slopes say nothing of it
    total = sum(alive)
    if total < ENOUGH_STEPS:
        return []
    agreement = sum(line["agreement"] * share for line, share in zip(windows, alive, strict=True)) / total
    return [f"slopes of two halves of the batch agree by {agreement:.2f} (1: no noise, 0: nothing but noise)"]


def _updates(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    needed = ("length", "weight_norm", "changed_share")
    lines = [line for line in metrics if line.get("kind") == "update" and has_numbers(line, *needed)]
    updates = [line for line in lines if line["length"] > 0 and line["weight_norm"] > 0]
    if not updates:
        return []
    relative = fmean([line["length"] / line["weight_norm"] for line in updates])
    changed = fmean([line["changed_share"] for line in updates])
    return [f"a step is {relative:.1e} of the weights' norm and changes {changed:.0%} of them"]


def _noise(metrics: Sequence[Mapping[str, Any]], dtype: str) -> list[str]:
    """What rounding and curvature do to a slope: told of bfloat16, and of any type where it is much."""
    found = [line for line in metrics if line.get("kind") == "slope_noise" and has_numbers(line, "repeat", "two_eps")]
    if not found or (dtype != "bfloat16" and found[-1]["two_eps"] <= NOISY):
        return []
    repeat, two_eps = found[-1]["repeat"], found[-1]["two_eps"]
    again = f"differs by {repeat:.1%} of a usual slope" if repeat else "gives the same slope"
    told = f"the same direction scored twice {again}; at twice the eps it differs by {two_eps:.0%}"
    if two_eps > NOISY:
        told += (
            " of a usual slope: that is rounding, which a larger eps cures, or curvature, which a smaller one cures; "
            "`noback epsilon` tells them apart"
        )
    return [told]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0

"""The health of a run: what its slopes, evaluations and updates say, and a verdict in words with the evidence.

Everything here is computed from numbers that a run already has; no torch, so that a report can read it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noback.journal import Contents

LEARNING, TOO_SMALL, DIVERGING = "learning", "too small a step", "diverging"
NO_SIGNAL, TOO_EARLY = "no signal", "too early to tell"
ENOUGH_STEPS = 20  # below this, neither slopes nor losses say anything
DOMINATED = 0.5  # a share of zero slopes above this is warned of
SLOPE_UNIT = "loss per unit"  # of slopes, where a journal says nothing else
NOISY = 0.5  # so is a slope that differs by a larger share at twice the eps


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run, in a word or two, and why one may say so."""

    word: str
    evidence: tuple[str, ...]


def slope_figures(slopes: Sequence[float]) -> dict[str, float]:
    """The share of slopes that are exactly zero, and the size and range of all of them."""
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


def tie_advice(share: float, eps: float, batch: int, directions: int, objective: str = "") -> str:
    """What helps where most slopes are zero, with the share to expect if flips of answers are independent."""
    other = "" if objective == "reward" else "--objective cross_entropy"  # a reward has no smooth kin
    told = f"{share:.0%} of the slopes are exactly zero at eps {eps:g}, batch {batch}: those steps learn nothing. "
    if share == 1.0:
        told += "Try an eps ten times larger (--adapt-ties raises it by itself)"
        return told + (f", or {other}" if other else "")
    return told + (
        f"A slope is not zero as soon as one answer flips, so four times the batch ({4 * batch}) or eps ({4 * eps:g}) "
        f"gives about {share**4:.0%} zero slopes, four times the directions ({4 * directions}) about {share**4:.0%} "
        "of steps without any; --adapt-ties raises eps by itself" + (f"; {other} has none" if other else "")
    )


def verdict(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> Verdict:
    """Learning, too small a step, diverging or no signal: judged by the evaluations, the losses and the slopes."""
    evaluations = [line for line in metrics if line.get("kind") == "validation" and "objective" in line]
    steps = len(contents.steps)
    if steps < ENOUGH_STEPS or len(evaluations) < 2:
        return Verdict(TOO_EARLY, (f"{steps} steps and {len(evaluations)} evaluations are too few to judge",))
    slopes = [slope for record in contents.steps for slope in record.slopes]
    figures = slope_figures(slopes)
    trend = _trend([record.loss for record in contents.steps])
    agreement = _agreement(metrics)
    evidence = [
        _evaluated(evaluations),
        f"the training loss went from {trend.first:.3f} to {trend.last:.3f} (first and last fifth of the steps), "
        f"{abs(trend.errors):.1f} standard errors {'up' if trend.errors > 0 else 'down'}",
        f"{figures['zero_slope_share']:.0%} of {len(slopes)} slopes are exactly zero; their mean size is "
        f"{figures['mean_abs_slope']:.3g}, the largest {figures['max_abs_slope']:.3g}{_unit(contents)}",
    ]
    if agreement is not None:
        evidence.append(
            f"slopes of two halves of the batch agree by {agreement:.2f} (1: no noise, 0: nothing but noise)"
        )
    evidence += _updates(metrics)
    evidence += _noise(metrics, str(contents.header.get("config", {}).get("dtype", "")))
    evidence += _majority(evaluations[-1], metrics)
    word = _word(evaluations, trend, figures["zero_slope_share"], agreement, len(slopes))
    return Verdict(word, (*evidence, *_advice(word, figures["zero_slope_share"], contents)))


def _unit(contents: Contents) -> str:
    """The unit of the slopes, where it is not the usual one."""
    unit = contents.header.get("slope_unit", SLOPE_UNIT)
    return "" if unit == SLOPE_UNIT else f", in {unit}"


@dataclass(frozen=True, slots=True)
class _Trend:
    first: float
    last: float
    errors: float  # the change in standard errors


def _trend(losses: Sequence[float]) -> _Trend:
    fifth = max(len(losses) // 5, 2)
    first, last = losses[:fifth], losses[-fifth:]
    change = _mean(last) - _mean(first)
    error = math.sqrt((_variance(first) + _variance(last)) / fifth)
    return _Trend(_mean(first), _mean(last), _in_errors(change, error))


def _word(
    evaluations: Sequence[Mapping[str, Any]], trend: _Trend, zeros: float, agreement: float | None, slopes: int
) -> str:
    first, last = evaluations[0], evaluations[-1]
    best = max(evaluations, key=lambda one: (float(one["score"]), -float(one.get("loss", 0.0))))
    worse = last["objective"] > first["objective"] and trend.errors > 3
    if _change(first, last) < -2 or worse or (_change(best, last) < -4 and trend.errors > 0):
        return DIVERGING
    lower = last["objective"] < first["objective"] and trend.errors < -3
    if _change(first, best) > 2 or lower:
        return LEARNING
    signal = agreement is not None and agreement > 2 / math.sqrt(slopes)
    return TOO_SMALL if signal and zeros <= DOMINATED else NO_SIGNAL


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """The change of the accuracy between two evaluations in standard errors; that of a mean reward is not known."""
    if before["accuracy"] is None:
        return 0.0
    a, b, examples = float(before["accuracy"]), float(after["accuracy"]), int(before["examples"])
    error = math.sqrt((a * (1 - a) + b * (1 - b)) / examples)
    return _in_errors(b - a, error)


def _in_errors(change: float, error: float) -> float:
    if error:
        return change / error
    return math.copysign(math.inf, change) if change else 0.0


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> str:
    first, last = evaluations[0], evaluations[-1]
    best = max(evaluations, key=lambda one: (float(one["score"]), -float(one.get("loss", 0.0))))
    if first["accuracy"] is None:
        return (
            f"mean validation reward {first['score']:.3f} before, {best['score']:.3f} at its best "
            f"(step {best['step']}), {last['score']:.3f} at the end"
        )
    return (
        f"validation accuracy {first['accuracy']:.1%} before, {best['accuracy']:.1%} at its best "
        f"(step {best['step']}), {last['accuracy']:.1%} at the end; objective {first['objective']:.3f} before, "
        f"{last['objective']:.3f} at the end"
    )


def _agreement(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """The agreement of the halves over all windows, each counted by its slopes."""
    windows = [line for line in metrics if line.get("kind") == "health" and "agreement" in line]
    alive = [line["slopes"] * (1 - line["zero_slope_share"]) for line in windows]  # zero slopes say nothing of it
    total = sum(alive)
    if total < ENOUGH_STEPS:
        return None
    return float(sum(line["agreement"] * share for line, share in zip(windows, alive, strict=True)) / total)


def _updates(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    updates = [line for line in metrics if line.get("kind") == "update" and line["length"] > 0]
    if not updates:
        return []
    relative = _mean([line["length"] / line["weight_norm"] for line in updates])
    changed = _mean([line["changed_share"] for line in updates])
    return [f"a step is {relative:.1e} of the weights' norm and changes {changed:.0%} of them"]


def _noise(metrics: Sequence[Mapping[str, Any]], dtype: str) -> list[str]:
    """What rounding and curvature do to a slope: told of bfloat16, and of any type where it is much."""
    found = [line for line in metrics if line.get("kind") == "slope_noise"]
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


def _majority(one: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """A model that answers one label to everything reads as that label's share."""
    table = one.get("confusion")
    if not table:
        return []
    answered = [sum(row[index] for row in table) for index in range(len(table))]
    share = max(answered) / max(sum(answered), 1)
    gold = max(sum(row) for row in table) / max(sum(answered), 1)
    if share < min(gold + 0.25, 0.95):
        return []
    labels = next((line["labels"] for line in metrics if line.get("kind") == "start"), None)
    index = answered.index(max(answered))
    name = labels[index] if labels else str(index)
    return [
        f"the model answers {name!r} to {share:.0%} of the validation set, of which {gold:.0%} is the largest label"
    ]


def _advice(word: str, zeros: float, contents: Contents) -> list[str]:
    config = contents.header.get("config", {})
    estimator = config.get("estimator", {})
    lr = config.get("rule", {}).get("lr")
    if zeros > DOMINATED and word != DIVERGING:
        eps = contents.eps_changes[-1].eps if contents.eps_changes else estimator.get("eps", 0.0)
        kind = config.get("objective", {}).get("kind", "")
        return [tie_advice(zeros, eps, config.get("batch", 0), estimator.get("directions", 1), kind)]
    if word == TOO_SMALL and lr:
        return [f"there is a signal but the weights hardly follow it: try more steps or a larger lr, {10 * lr:g}"]
    if word == DIVERGING and lr:
        return [f"try a smaller lr, such as {lr / 10:g}; `noback epsilon` says whether eps is too large"]
    if word == NO_SIGNAL:
        return ["nothing moved by more than chance: try a larger lr, a larger batch, more directions, or a prompt"]
    return []


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)

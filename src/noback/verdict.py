"""The verdict on a run: what became of it, in a word or two, with the evidence and what to try.

Everything here is computed from numbers that a run already has; no torch, so that a report can read it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noback.health import DOMINATED, ENOUGH_STEPS, SLOPE_UNIT, slope_figures, tie_advice
from noback.journal import Contents
from noback.json_text import has_numbers, number_in
from noback.values import to_float32

LEARNING, TOO_SMALL, DIVERGING = "learning", "too small a step", "diverging"
NO_SIGNAL, TOO_EARLY = "no signal", "too early to tell"
_TIMES, _AT_LEAST = 3.0, 0.1  # a validation loss that has grown so many times, and by so much, diverges
_FLAT = 0.003  # a validation loss that changed by a smaller share is flat
_NEEDED = ("step", "score", "objective", "examples")  # the numbers that a line of an evaluation must have


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run, in a word or two, and why one may say so."""

    word: str
    evidence: tuple[str, ...]


def verdict(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> Verdict:
    """Learning, too small a step, diverging or no signal: judged by the evaluations, the losses and the slopes.

    A pure function of the journal's records and of what a resumed run makes again where it is lost: the lines of the
    start and of the first, best and last evaluation. So an interrupted run is judged as one that never was.
    """
    evaluated, steps = evaluations(metrics), len(contents.steps)
    stopped, tripled = _stopped(contents, metrics), _tripled(evaluated)
    if not stopped and not tripled and (steps < ENOUGH_STEPS or len(evaluated) < 2):
        # By the journal: a line for people may be lost.
        seen = {one.step for one in contents.evaluations} | {int(line["step"]) for line in evaluated}
        return Verdict(TOO_EARLY, (f"{steps} steps and {len(seen)} evaluations are too few to judge",))
    evidence = [*stopped, *tripled]
    if evaluated:
        evidence.append(_evaluated(evaluated))
    course = _Course.of(contents, evaluated)
    evidence += [*_losses(course.trend), *_slopes(contents), *_majority(evaluated, metrics)]
    word = DIVERGING if stopped or tripled else course.word()
    return Verdict(word, (*evidence, *_advice(word, course, contents)))


def evaluations(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of evaluations that give numbers, by step; of a step that was evaluated again, the newest."""
    lines = [line for line in metrics if line.get("kind") == "validation" and has_numbers(line, *_NEEDED)]
    sound = {int(line["step"]): line for line in lines if line["examples"] > 0 and _accuracy_is_known(line)}
    return [sound[step] for step in sorted(sound)]


def stopped_at(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Where the run stopped for numbers that are none, and what was found; not where a resumed run came further."""
    lines = [line for line in metrics if line.get("kind") == "diverged" and has_numbers(line, "step")]
    return {int(line["step"]): str(line.get("found", "")) for line in lines if line["step"] >= len(contents.steps)}


def _accuracy_is_known(line: Mapping[str, Any]) -> bool:
    """Whether a line says its accuracy, or says that there is none: a reward has none."""
    return "accuracy" in line and (line["accuracy"] is None or has_numbers(line, "accuracy"))


def _stopped(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"the run stopped at step {step}: {found}" for step, found in stopped_at(contents, metrics).items()]


def _tripled(evaluated: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the validation loss, a cross-entropy, is three times what it was; a reward has none."""
    if len(evaluated) < 2 or evaluated[0]["accuracy"] is None:
        return []
    first, last = number_in(evaluated[0], "loss"), number_in(evaluated[-1], "loss")
    if first is None or last is None or last < _TIMES * first or last - first <= _AT_LEAST:
        return []
    return [f"the validation loss went from {first:.4g} to {last:.4g}"]


@dataclass(frozen=True, slots=True)
class _Trend:
    first: float
    last: float
    errors: float  # the change in standard errors


def _trend(losses: Sequence[float]) -> _Trend | None:
    """The losses of the first and the last fifth of the steps; None where there are too few."""
    if len(losses) < 2:
        return None
    fifth = max(len(losses) // 5, 2)
    first, last = losses[:fifth], losses[-fifth:]
    change = _mean(last) - _mean(first)
    error = math.sqrt((_variance(first) + _variance(last)) / fifth)
    return _Trend(_mean(first), _mean(last), _in_errors(change, error))


@dataclass(frozen=True, slots=True)
class _Course:
    """The course of a run: its evaluations, its training loss, and the share of its slopes that are zero."""

    evaluated: Sequence[Mapping[str, Any]]
    trend: _Trend | None
    zeros: float

    @classmethod
    def of(cls, contents: Contents, evaluated: Sequence[Mapping[str, Any]]) -> _Course:
        """From a journal and the lines of its evaluations."""
        slopes = [slope for record in contents.steps for slope in record.slopes]
        trend = _trend([record.loss for record in contents.steps])
        return cls(evaluated, trend, slope_figures(slopes)["zero_slope_share"])

    def word(self) -> str:
        """The verdict where the run neither stopped nor lost its way altogether."""
        first, best, last = self.evaluated[0], _best(self.evaluated), self.evaluated[-1]
        errors = self.trend.errors if self.trend else 0.0
        worse = last["objective"] > first["objective"] and errors > 3
        if _change(first, last) < -2 or worse or (_change(best, last) < -4 and errors > 0):
            return DIVERGING
        lower = last["objective"] < first["objective"] and errors < -3
        if _change(first, best) > 2 or lower:
            return LEARNING
        return TOO_SMALL if self._falls() and self.zeros <= DOMINATED else NO_SIGNAL

    def _falls(self) -> bool:
        """Whether one of training loss and validation objective falls and the other does not rise.

        The training loss is of other examples at each step, so it counts from one standard error on.
        """
        errors = self.trend.errors if self.trend else 0.0
        training = 0 if abs(errors) <= 1 else _sign(errors)
        return training + _sign(self.evaluated[-1]["objective"] - self.evaluated[0]["objective"]) < 0

    def rises(self) -> bool:
        """Whether the training loss, the validation loss or the objective is higher at the end, by however little."""
        if self.trend and self.trend.last > self.trend.first:
            return True
        return any(_relative(self.evaluated, key) > 0 for key in ("loss", "objective"))

    def goes_down(self) -> bool:
        """Whether the loss falls by more than a flat one does: one standard error, or a few per mille of validation."""
        if self.trend and self.trend.errors < -1:
            return True
        return any(_relative(self.evaluated, key) < -_FLAT for key in ("loss", "objective"))


def _relative(evaluated: Sequence[Mapping[str, Any]], key: str) -> float:
    """The change from the first evaluation to the last over the size of the first; 0 where it is not known."""
    if len(evaluated) < 2 or not (has_numbers(evaluated[0], key) and has_numbers(evaluated[-1], key)):
        return 0.0
    change = float(evaluated[-1][key] - evaluated[0][key])
    return change / abs(evaluated[0][key]) if evaluated[0][key] else _in_errors(change, 0.0)


def _best(evaluated: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The best evaluation as the journal, which keeps float32, has it."""

    def rank(one: Mapping[str, Any]) -> tuple[float, float, float]:
        return to_float32(one["score"]), -to_float32(number_in(one, "loss") or 0.0), -one["step"]

    return max(evaluated, key=rank)


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """The change of the accuracy between two evaluations in standard errors; that of a mean reward is not known."""
    if before["accuracy"] is None or after["accuracy"] is None:
        return 0.0
    a, b, examples = float(before["accuracy"]), float(after["accuracy"]), int(before["examples"])
    error = math.sqrt((a * (1 - a) + b * (1 - b)) / examples)
    return _in_errors(b - a, error)


def _in_errors(change: float, error: float) -> float:
    if error:
        return change / error
    return math.copysign(math.inf, change) if change else 0.0


# The evidence of the verdict


def _evaluated(evaluated: Sequence[Mapping[str, Any]]) -> str:
    first, best, last = evaluated[0], _best(evaluated), evaluated[-1]
    if any(one["accuracy"] is None for one in (first, best, last)):
        return (
            f"mean validation reward {first['score']:.3f} before, {best['score']:.3f} at its best "
            f"(step {best['step']}), {last['score']:.3f} at the end"
        )
    return (
        f"validation accuracy {first['accuracy']:.1%} before, {best['accuracy']:.1%} at its best "
        f"(step {best['step']}), {last['accuracy']:.1%} at the end; objective {first['objective']:.3f} before, "
        f"{last['objective']:.3f} at the end"
    )


def _losses(trend: _Trend | None) -> list[str]:
    if trend is None:
        return []
    return [
        f"the training loss went from {trend.first:.3f} to {trend.last:.3f} (first and last fifth of the steps), "
        f"{abs(trend.errors):.1f} standard errors {'up' if trend.errors > 0 else 'down'}"
    ]


def _slopes(contents: Contents) -> list[str]:
    slopes = [slope for record in contents.steps for slope in record.slopes]
    if not slopes:
        return []
    figures, unit = slope_figures(slopes), contents.header.get("slope_unit", SLOPE_UNIT)
    return [
        f"{figures['zero_slope_share']:.0%} of {len(slopes)} slopes are exactly zero; their mean size is "
        f"{figures['mean_abs_slope']:.3g}, the largest {figures['max_abs_slope']:.3g}"
        + ("" if unit == SLOPE_UNIT else f", in {unit}")
    ]


def _majority(evaluated: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """A model that answers one label to everything reads as that label's share."""
    table = evaluated[-1].get("confusion") if evaluated else None
    if not table:
        return []
    answered = [sum(row[index] for row in table) for index in range(len(table))]
    share = max(answered) / max(sum(answered), 1)
    gold = max(sum(row) for row in table) / max(sum(answered), 1)
    if share < min(gold + 0.25, 0.95):
        return []
    labels = next((line.get("labels") for line in metrics if line.get("kind") == "start"), None)
    index = answered.index(max(answered))
    name = labels[index] if labels else str(index)
    return [
        f"the model answers {name!r} to {share:.0%} of the validation set, of which {gold:.0%} is the largest label"
    ]


def _advice(word: str, course: _Course, contents: Contents) -> list[str]:
    """What to try: never against the direction of the loss, and a larger lr only where nothing moves."""
    config = contents.header.get("config", {})
    lr = config.get("rule", {}).get("lr")
    if word == DIVERGING:
        such = f", such as {lr / 10:g}" if lr else ""
        return [f"try a smaller lr{such}; `noback epsilon` says whether eps is too large"]
    if course.zeros > DOMINATED:
        return [_tie_advice(course.zeros, config, contents)]
    if word not in (TOO_SMALL, NO_SIGNAL):
        return []
    if course.rises():
        return ["a loss went up, if by no more than chance: try a larger batch, more directions, or another prompt"]
    if course.goes_down():
        return ["the loss falls, if by no more than chance can tell: try more steps"]
    such = f" of up to {3 * lr:g}" if lr else " of up to three times as much"
    return [f"the loss is flat: try an lr{such}, a larger batch, more directions, or another prompt"]


def _tie_advice(zeros: float, config: Mapping[str, Any], contents: Contents) -> str:
    estimator = config.get("estimator", {})
    eps = contents.eps_changes[-1].eps if contents.eps_changes else estimator.get("eps", 0.0)
    kind = config.get("objective", {}).get("kind", "")
    return tie_advice(zeros, eps, config.get("batch", 0), estimator.get("directions", 1), kind)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)

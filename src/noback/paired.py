"""Two evaluations of one set compared example by example: what chance alone would give, and what it would not.

The same examples are answered before and after, so what is easy or hard in them cancels out. Everything is computed
from numbers that a run records; no torch, so that a report can read it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from noback.counts import upper_tail

_SHARPEST = 100.0  # of the factors that the logits are multiplied by: answers that are all right have no best one


class PerExample(NamedTuple):
    """How each example of a set was answered, in the order of its batches."""

    credits: list[float]  # what each adds to the score, higher is better: 1 or 0 where the score is the accuracy
    losses: list[float]
    tempered: list[float]  # losses at the best temperature: a model that is only less sure has gained nothing

    def sampled(self, most: int) -> PerExample:
        """At most so many of the examples, always the same ones of a set."""
        every = math.ceil(len(self.credits) / most)
        return PerExample(*(values[::every] for values in self))


def chance_of_gain(before: Sequence[float], after: Sequence[float]) -> float:
    """How likely chance alone gives a gain as large as from `before` to `after`: a p-value, one-sided.

    Answers that are right or wrong: McNemar's exact test. Other numbers: Student's paired test.
    """
    if {*before, *after} <= {0, 1}:
        gained = sum(a < b for a, b in zip(before, after, strict=True))
        lost = sum(a > b for a, b in zip(before, after, strict=True))
        return one_sided_mcnemar(gained, lost)
    return 0.5 * math.erfc(in_errors(before, after) / math.sqrt(2))


def one_sided_mcnemar(gained: int, lost: int) -> float:
    """The chance that a fair coin, thrown for each answer that changed, gives at least so many gains."""
    return upper_tail(gained + lost, gained)


def in_errors(before: Sequence[float], after: Sequence[float]) -> float:
    """The mean change in standard errors, as a normal variable: that of Student's t has been allowed for."""
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    freedom = len(differences) - 1
    if freedom < 1:
        return 0.0
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    if error == 0.0:
        return math.copysign(math.inf, mean) if mean else 0.0
    # Wallace's approximation: a normal variable that is as unlikely as Student's t.
    size = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p((mean / error) ** 2 / freedom))
    return math.copysign(size, mean)


def losses_at_best_temperature(logits: NDArray[np.float64], gold: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cross-entropy of each example [examples] after all logits are multiplied by the factor that suits them best.

    `logits` [examples, candidates] are -inf where an example has fewer candidates.
    """
    known = np.isfinite(logits)
    centred = np.where(known, logits - logits.max(axis=1, keepdims=True), 0.0)
    rows = np.arange(len(centred))

    def weights(factor: float) -> NDArray[np.float64]:
        return np.where(known, np.exp(factor * centred), 0.0)

    def slope(factor: float) -> float:
        """Of the mean loss over the factor; it rises with it, so the loss has one lowest point."""
        chances = weights(factor)
        expected = (chances * centred).sum(axis=1) / chances.sum(axis=1)
        return float((expected - centred[rows, gold]).mean())

    low, high = 0.0, _SHARPEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    found: NDArray[np.float64] = np.log(weights(low).sum(axis=1)) - low * centred[rows, gold]
    return found


def in_how_many_cases(chance: float) -> str:
    """A chance as people read it: in how many of a hundred cases chance alone gives as much."""
    share = f"{100 * chance:.2g}" if chance < 0.995 else "100"
    return f"chance alone gives as much in {'less than 0.01' if chance < 1e-4 else share}% of cases"

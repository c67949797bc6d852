"""The paired bootstrap: how sure a difference between two methods is that answered the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2_000
_SEED = 20_231


class Interval(NamedTuple):
    """A mean difference in points, and where 95 % of the resampled ones lie."""

    mean: float
    low: float
    high: float


def paired_difference(differences: Mapping[str, Sequence[Sequence[float]]]) -> Interval:
    """`differences`: by the task, for each seed what each example adds: 1, 0 or -1. Tasks count alike.

    Seeds and, within each, examples are drawn anew with replacement; the tasks are those that were chosen.
    """
    generator = np.random.default_rng(_SEED)
    means, drawn = [], np.zeros(_RESAMPLES)
    for by_seed in differences.values():
        table = np.array(by_seed, dtype=np.float64)  # [seeds, examples]
        means.append(table.mean())
        drawn += _resampled(table, generator) / len(differences)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(*(round(100 * float(value), 2) for value in (np.mean(means), low, high)))


def _resampled(table: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Means over drawn seeds of drawn examples: [resamples]."""
    seeds, examples = table.shape
    found = np.empty(_RESAMPLES)
    for place in range(_RESAMPLES):
        rows = generator.integers(seeds, size=(seeds, 1))
        found[place] = table[rows, generator.integers(examples, size=(seeds, examples))].mean()
    return found

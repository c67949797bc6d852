"""The few sums a report needs: averages, bins, and long curves made short."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 2000  # a curve is drawn with at most about this many


@dataclass(frozen=True, slots=True)
class Bins:
    """Counts of equally wide bins; zero lies in the middle of the middle one."""

    centers: list[float]
    counts: list[int]
    width: float


def averaging_window(steps: int) -> int:
    """Over how many steps a curve is averaged: a twentieth of them, at least five."""
    return max(steps // 20, 5)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """At each place, the mean of the last `window` values up to it."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    starts = (max(index + 1 - window, 0) for index in range(len(values)))
    return [(sums[index + 1] - sums[start]) / (index + 1 - start) for index, start in enumerate(starts)]


def kept_places(values: Sequence[float], limit: int = POINTS) -> list[int]:
    """Which points of a long curve to draw: of each stretch its lowest and its highest, so that no spike is lost."""
    if len(values) <= limit:
        return list(range(len(values)))
    stretch = math.ceil(2 * len(values) / limit)
    kept: set[int] = {0, len(values) - 1}
    for start in range(0, len(values), stretch):
        places = range(start, min(start + stretch, len(values)))
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(kept)


def binned_sizes(values: Sequence[float], to_a_decade: int = 4) -> tuple[list[float], list[int]]:
    """A histogram of sizes in steps of equal ratio: the bins' middles and counts; zeros have no place in it."""
    places = [round(math.log10(abs(value)) * to_a_decade) for value in values if value]
    if not places:
        return [], []
    bins = range(min(places) - 1, max(places) + 2)  # an empty one at either end
    counts = Counter(places)
    return [10 ** (place / to_a_decade) for place in bins], [counts[place] for place in bins]


def binned(values: Sequence[float], bins: int = 41) -> Bins:
    """A histogram that is symmetric about zero; `bins` is odd."""
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    width, half = 2 * largest / bins, bins // 2
    counts = [0] * bins
    for value in values:
        counts[min(max(round(value / width), -half), half) + half] += 1
    return Bins([(index - half) * width for index in range(bins)], counts, width)

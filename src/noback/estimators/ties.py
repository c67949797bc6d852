"""Ties: a piecewise constant objective has a slope of exactly zero where no answer flips; a larger eps flips more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.options import option, positive, whole
from noback.values import to_float32

# Of a run whose every slope was zero, so many steps raise eps by so much: four zeros in a row have an even chance
# where 84 % of slopes are zero, and nine times the eps makes that 20 % where flips of answers are independent.
_DEAD_STEPS, _DEAD_FACTOR = 4, 10.0


@dataclass(frozen=True, slots=True)
class AdaptTies:
    """Raise eps until few enough slopes are zero: a pure function of the slopes that the journal holds."""

    kind: ClassVar[str] = "raise_eps"

    target: float = option(0.2, "the share of zero slopes that is small enough")
    largest: float | None = option(None, "eps is never raised above this; none: 0.01, or ten times eps if that is more")
    factor: float = option(2.0, "by how much eps is raised at a time; tenfold while every slope of the run is zero")
    window: int = option(16, "steps that are counted before eps is raised; 4 while every slope of the run is zero")

    def __post_init__(self) -> None:
        if self.largest is not None:
            positive("adapt_ties.largest", self.largest)
        whole("adapt_ties.window", self.window)
        if not 0 <= self.target < 1:
            raise InputError(f"adapt_ties.target is {self.target!r}; expected a share from 0 to below 1")
        if not self.factor > 1:
            raise InputError(f"adapt_ties.factor is {self.factor!r}; expected a number above 1")

    def next_eps(self, eps: float, slopes: Sequence[tuple[float, ...]], *, dead: bool = False) -> float:
        """The eps to go on with, given each step's slopes since it was last raised.

        `dead`: no slope of the run so far is anything but zero. Then a few steps tell that eps is far too small.
        """
        largest = math.inf if self.largest is None else self.largest
        if eps >= largest:
            return eps
        if dead and len(slopes) >= min(_DEAD_STEPS, self.window):
            return to_float32(min(eps * max(self.factor, _DEAD_FACTOR), largest))
        if len(slopes) < self.window:
            return eps
        recent = [slope for step in slopes[-self.window :] for slope in step]
        if zero_share(recent) <= self.target:
            return eps
        return to_float32(min(eps * self.factor, largest))


def zero_share(slopes: Sequence[float]) -> float:
    """The share of slopes that are exactly zero."""
    return sum(slope == 0.0 for slope in slopes) / len(slopes) if slopes else 0.0

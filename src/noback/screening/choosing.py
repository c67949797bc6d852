"""Which trials go on, and which rate a run takes: decided by held-out losses alone.

Rates are in ascending order. A short trial flatters large rates: they are quick at first, and what they cost, noise
that stays or a loss that leaves the ground later, shows with time. So who goes on is the best and those below it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from noback.paired import in_errors

Losses = Sequence[float] | None  # of the parts of the held-out examples; None: the trial is lost
_SURE, _UNSURE = 2.0, 1.0  # standard errors of the difference between two trials


def mean(losses: Losses) -> float:
    """The mean over the parts; of a trial that is lost, infinite."""
    return math.inf if losses is None else statistics.mean(losses)


def is_worse(losses: Losses, other: Sequence[float], errors: float = _SURE) -> bool:
    """Whether a trial's losses are higher than others by more than the noise of their difference."""
    return losses is None or in_errors(other, losses) > errors


def edge_is_seen(losses: Sequence[Losses], base: Sequence[float]) -> bool:
    """Whether the largest rate is too large: it is lost, or worse than the best or than no step at all."""
    return is_worse(losses[-1], _best(losses, base))


def none_is_sound(losses: Sequence[Losses], base: Sequence[float]) -> bool:
    """Whether every rate is too large: lost, or worse than no step at all."""
    return all(is_worse(one, base) for one in losses)


def highest(losses: Sequence[Losses]) -> int:
    """The place of the largest rate that is not worse than the best."""
    best = _best(losses)
    return max(place for place, one in enumerate(losses) if not is_worse(one, best))


def chosen(losses: Sequence[Losses]) -> int:
    """The place of the smallest rate that is not worse than the best."""
    best = _best(losses)
    return next(place for place, one in enumerate(losses) if not is_worse(one, best, _UNSURE))


def _best(losses: Sequence[Losses], *others: Sequence[float]) -> Sequence[float]:
    return min([*(one for one in losses if one is not None), *others], key=mean)

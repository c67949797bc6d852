"""Slopes divided by their recent size: one scalar second moment, made again from the journal (MEAZO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.options import option, whole
from noback.rules.base import LR_HELP, Array, Rule, check_rule
from noback.rules.clipping import CLIP_HELP
from noback.rules.schedule import SCHEDULES
from noback.usual import Rate

_TINY = 1e-24  # beside a mean square: slopes that are all zero move nothing


@dataclass(frozen=True, slots=True)
class Normalised(Rule):
    """w <- (1 - lr wd) w - lr * mean over directions of (slope z) / sqrt(v).

    v is the weighted mean of squared slopes over the step and `window` earlier ones, by beta^age. The weights sum to 1
    from the first step on, so there is no bias to correct.
    """

    kind: ClassVar[str] = "normalised"
    # The root and the sums are taken on the host: a GPU may round them otherwise than the replay of its journal does.
    runs_ahead: ClassVar[bool] = False

    lr: Rate | None = option(None, LR_HELP)
    weight_decay: float = option(0.0, "weight decay, times the learning rate each step; biases and norms are spared")
    schedule: str = option("constant", "how the learning rate goes over the run", choices=SCHEDULES)
    beta: float = option(0.9, "how much a step's squared slopes count beside those of the step after it")
    window: int = option(50, "earlier steps in the mean")
    clip: float | None = option(None, CLIP_HELP)

    def __post_init__(self) -> None:
        check_rule(self)
        whole("rule.window", self.window)
        if not 0 < self.beta < 1:
            raise InputError(f"rule.beta is {self.beta!r}; expected a number above 0 and below 1")

    @property
    def memory(self) -> int:
        """The window."""
        return self.window

    def coefficients(self, lr: float, slopes: Sequence[Array]) -> list[Array]:
        """Down each slope of the step, in units of the recent slopes' size; earlier steps only give that size."""
        shares = [self.beta**age for age in range(len(slopes))]
        squares = [sum(one * one for one in some.tolist()) / len(some) for some in slopes]
        mean = sum(share * square for share, square in zip(shares, squares, strict=True)) / sum(shares)
        return [-lr / len(slopes[0]) / (mean + _TINY) ** 0.5 * slopes[0]]

"""Stochastic gradient descent along the directions of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.options import option
from noback.rules.base import LR_HELP, Array, Rule, check_rule
from noback.rules.clipping import CLIP_HELP
from noback.rules.schedule import SCHEDULES
from noback.usual import Rate


@dataclass(frozen=True, slots=True)
class Sgd(Rule):
    """w <- (1 - lr wd) w - lr * mean over directions of (slope z); biases and norms are not decayed."""

    kind: ClassVar[str] = "sgd"

    lr: Rate | None = option(None, LR_HELP)
    weight_decay: float = option(0.0, "weight decay, times the learning rate each step; biases and norms are spared")
    schedule: str = option("constant", "how the learning rate goes over the run", choices=SCHEDULES)
    clip: float | None = option(None, CLIP_HELP)

    def __post_init__(self) -> None:
        check_rule(self)

    def coefficients(self, lr: float, slopes: Sequence[Array]) -> list[Array]:
        """Down each slope of the step."""
        return [-lr / len(slopes[0]) * slopes[0]]

"""Momentum that stores nothing: the last steps' directions are made again from their seeds."""

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


@dataclass(frozen=True, slots=True)
class Momentum(Rule):
    """w <- (1 - lr wd) w - lr m, where m is the moving mean (1 - beta) * sum over age of beta^age * that step's mean.

    Terms older than `window` steps are left out. A step makes the noise of window + 1 steps, so its update costs as
    many sweeps over the weights as one without momentum; its forwards cost the same.
    """

    kind: ClassVar[str] = "momentum"

    lr: Rate | None = option(None, LR_HELP)
    weight_decay: float = option(0.0, "weight decay, times the learning rate each step; biases and norms are spared")
    schedule: str = option("constant", "how the learning rate goes over the run", choices=SCHEDULES)
    beta: float = option(0.7, "how much of the mean is kept from a step to the next")
    window: int = option(10, "earlier steps in the mean")
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
        """Down each slope, less for each step of age."""
        return [-lr * (1 - self.beta) * self.beta**age / len(some) * some for age, some in enumerate(slopes)]

"""Adam along measured directions, for small adapters: a mean and a mean square are kept of every tuned weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.options import option, positive
from noback.rules.base import LR_HELP, Array, Rule, check_rule
from noback.rules.clipping import CLIP_HELP
from noback.rules.schedule import SCHEDULES
from noback.usual import Rate
from noback.values import Adaptive

MOST = 2**25  # weights: 400 MB of moments


@dataclass(frozen=True, slots=True)
class Adam(Rule):
    """w <- (1 - lr wd) w - lr m / (sqrt(v) + tiny), with the moving means m of g and v of g^2, g the mean of slope z.

    m and v are two float32 numbers a weight (three where weights are bfloat16), in memory: this rule stores more than
    a copy of what is tuned, so it is for adapters such as LoRA and refused beyond 33 million weights. Nothing of it is
    on the disk; a run that goes on replays its journal from the first step.
    """

    kind: ClassVar[str] = "adam"
    runs_ahead: ClassVar[bool] = False
    keeps_moments: ClassVar[bool] = True
    keeps_largest: ClassVar[bool] = False

    lr: Rate | None = option(None, LR_HELP)
    weight_decay: float = option(0.0, "weight decay, times the learning rate each step; biases and norms are spared")
    schedule: str = option("constant", "how the learning rate goes over the run", choices=SCHEDULES)
    beta1: float = option(0.9, "how much of the mean of g is kept from a step to the next")
    beta2: float = option(0.99, "how much of the mean of g^2 is kept from a step to the next")
    tiny: float = option(1e-8, "added to the root of the mean square")
    clip: float | None = option(None, CLIP_HELP)

    def __post_init__(self) -> None:
        check_rule(self)
        positive("rule.tiny", self.tiny)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"rule.{name} is {getattr(self, name)!r}; expected a number from 0 and below 1")

    def coefficients(self, _lr: float, slopes: Sequence[Array]) -> list[Array]:
        """Minus g; the learning rate is in `adaptive`."""
        return [-1.0 / len(slopes[0]) * slopes[0]]

    def adaptive(self, step: int, lr: float) -> Adaptive:
        """The rule's numbers at a step."""
        return Adaptive(step, lr, self.beta1, self.beta2, self.tiny, self.keeps_largest)

    def check_weights(self, count: int) -> None:
        """Refuse what is no small adapter."""
        if count > MOST:
            raise InputError(
                f"rule {self.kind!r} keeps numbers of every tuned weight, and {count:,} are tuned; expected at most "
                f"{MOST:,}: use --adapter lora, or another rule"
            )

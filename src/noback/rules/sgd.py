"""The plain rule: a step against the mean of the slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from noback.errors import InputError
from noback.options import not_negative, one_of, option, positive
from noback.rules.schedule import SCHEDULES
from noback.values import Estimate, Move, Term


class Pace(NamedTuple):
    """What each slope of a step is multiplied by, and its move's decay."""

    share: float
    decay: float


@dataclass(frozen=True, slots=True)
class Sgd:
    """w <- (1 - lr wd) w - lr * mean over directions of (slope z); biases and norms are not decayed."""

    kind: ClassVar[str] = "sgd"

    lr: float | None = option(None, "learning rate; none: 2e-5, with lora 5e-4, with prefix 5e-2")
    weight_decay: float = option(0.0, "weight decay, times the learning rate each step; biases and norms are spared")
    schedule: str = option("constant", "how the learning rate goes over the run", choices=SCHEDULES)

    def __post_init__(self) -> None:
        if self.lr is not None:
            positive("lr", self.lr)
        not_negative("weight_decay", self.weight_decay)
        one_of("schedule", self.schedule, SCHEDULES)

    def move(self, step: int, steps: int, estimate: Estimate) -> Move:
        """The move of a step: a pure function of what the journal holds."""
        pace = self.pace(step, steps, len(estimate.slopes))
        terms = zip(estimate.seeds, estimate.slopes, strict=True)
        return Move(tuple(Term(seed, pace.share * slope) for seed, slope in terms), pace.decay)

    def pace(self, step: int, steps: int, directions: int) -> Pace:
        """What of a move no slope decides."""
        if self.lr is None:
            raise InputError("the rule has no lr; expected a number above zero")
        lr = self.lr * SCHEDULES[self.schedule](step, steps)
        return Pace(-lr / directions, 1.0 - lr * self.weight_decay)

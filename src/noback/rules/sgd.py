"""The plain rule: a step against the mean of the slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.options import not_negative, one_of, option, positive
from noback.rules.schedule import SCHEDULES
from noback.values import Estimate, Move, Term


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
        if self.lr is None:
            raise InputError("the rule has no lr; expected a number above zero")
        lr = self.lr * SCHEDULES[self.schedule](step, steps)
        share = -lr / len(estimate.slopes)
        terms = zip(estimate.seeds, estimate.slopes, strict=True)
        return Move(tuple(Term(seed, share * slope) for seed, slope in terms), 1.0 - lr * self.weight_decay)

"""Schedules: the factor of the learning rate at a step, counted from 0."""

from __future__ import annotations

import math

_WARM_UP = 0.1  # the share of a run over which a schedule with a warm-up rises


def constant(_step: int, _steps: int) -> float:
    """Always the same."""
    return 1.0


def linear(step: int, steps: int) -> float:
    """Down to zero in a straight line."""
    return 1.0 - step / steps


def cosine(step: int, steps: int) -> float:
    """Down to zero along half a cosine: slow at both ends."""
    return 0.5 * (1.0 + math.cos(math.pi * step / steps))


def warmup_linear(step: int, steps: int) -> float:
    """Up in a straight line over the first tenth of the run, then as `linear`."""
    return warmed_up(step, steps) * linear(step, steps)


def warmup_cosine(step: int, steps: int) -> float:
    """Up in a straight line over the first tenth of the run, then as `cosine`."""
    return warmed_up(step, steps) * cosine(step, steps)


def warmed_up(step: int, steps: int) -> float:
    """How much of the learning rate a warm-up allows: all of it after the first tenth, and never nothing."""
    return min(1.0, (step + 1) / max(_WARM_UP * steps, 1.0))


SCHEDULES = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "warmup_linear": warmup_linear,
    "warmup_cosine": warmup_cosine,
}

"""Schedules: the factor of the learning rate at a step, counted from 0."""

from __future__ import annotations


def constant(_step: int, _steps: int) -> float:
    """Always the same."""
    return 1.0


def linear(step: int, steps: int) -> float:
    """Down to zero in a straight line."""
    return 1.0 - step / steps


SCHEDULES = {"constant": constant, "linear": linear}

"""Estimators: pure functions from seeds to points and from losses to slopes."""

from noback.estimators.two_sided import TwoSided

__all__ = ["TwoSided"]

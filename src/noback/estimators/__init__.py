"""Estimators: where losses are taken, and how they become slopes."""

from noback.estimators.ties import AdaptTies
from noback.estimators.two_sided import TwoSided

__all__ = ["AdaptTies", "TwoSided"]

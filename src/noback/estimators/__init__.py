"""Estimators: where losses are taken, and how they become slopes. A method is one file and one row."""

from noback.estimators.base import Estimator, Found, estimate, estimate_of, run_search
from noback.estimators.curvature import CurvatureWeighted as CurvatureWeighted
from noback.estimators.grouped import Asked, estimate_groups, search_groups
from noback.estimators.one_sided import OneSided as OneSided
from noback.estimators.ties import AdaptTies
from noback.estimators.two_sided import TwoSided as TwoSided

AnyEstimator = (
    TwoSided
    | OneSided
    | CurvatureWeighted
)  # fmt: skip

__all__ = [
    "AdaptTies",
    "AnyEstimator",
    "Asked",
    "Estimator",
    "Found",
    "estimate",
    "estimate_groups",
    "estimate_of",
    "run_search",
    "search_groups",
]

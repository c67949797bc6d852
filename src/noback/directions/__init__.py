"""Directions: noise that is a pure function of (seed, tensor, row, column)."""

from noback.directions.drawing import drawn, tensor_id
from noback.directions.families import FAMILIES, NOISES, AnyNoise, Family
from noback.directions.families import Normal as Normal
from noback.directions.families import Rademacher as Rademacher
from noback.directions.philox import Place
from noback.directions.sweeps import advance, perturb, perturb_together

__all__ = [
    "FAMILIES",
    "NOISES",
    "AnyNoise",
    "Family",
    "Place",
    "advance",
    "drawn",
    "perturb",
    "perturb_together",
    "tensor_id",
]

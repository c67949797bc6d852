"""Directions: noise that is a pure function of (seed, tensor, row, column)."""

from noback.directions.drawing import drawn, tensor_id
from noback.directions.families import FAMILIES, Family
from noback.directions.philox import Place
from noback.directions.sweeps import advance, perturb, perturb_together

__all__ = ["FAMILIES", "Family", "Place", "advance", "drawn", "perturb", "perturb_together", "tensor_id"]

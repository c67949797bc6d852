"""Directions: noise that is a pure function of (seed, tensor, row, column)."""

from noback.directions.drawing import drawn, tensor_id
from noback.directions.families import FAMILIES, AnyNoise, Noise, check_noise
from noback.directions.normal import Normal
from noback.directions.philox import Place
from noback.directions.rademacher import Rademacher
from noback.directions.ranked import KeptColumns, LowRank, Rank1
from noback.directions.seeds import column_seed, seeds_of

__all__ = [
    "FAMILIES", "AnyNoise", "KeptColumns", "LowRank", "Noise", "Normal", "Place", "Rademacher", "Rank1", "check_noise",
    "column_seed", "drawn", "seeds_of", "tensor_id",
]  # fmt: skip

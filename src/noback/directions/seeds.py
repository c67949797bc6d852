"""The seeds of a step's directions, for any family; and which part of a seed stands for the columns' signs.

Where a family keeps its columns, the upper half of a seed is that of the steps that share them, and keys their signs;
the lower half is the step's own, and the whole seed keys everything else.
"""

from __future__ import annotations

from noback.directions.families import Noise
from noback.values import direction_seeds

_LOWER = 2**32 - 1


def seeds_of(noise: Noise, run_seed: int, step: int, directions: int) -> tuple[int, ...]:
    """The seeds of a step's directions: a pure function of the family, the run's seed and the step."""
    own = direction_seeds(run_seed, step, directions)
    if noise.period is None:
        return own
    shared = direction_seeds(run_seed, step // noise.period, directions)
    return tuple((upper & ~_LOWER) | (lower & _LOWER) for upper, lower in zip(shared, own, strict=True))


def column_seed(noise: Noise, seed: int) -> int:
    """What keys the signs of a direction's columns."""
    return seed if noise.period is None else seed & ~_LOWER

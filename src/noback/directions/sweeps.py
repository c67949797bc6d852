"""The two sweeps over a tensor, by the fastest implementation that this machine has."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from noback.directions import philox
from noback.directions.families import Family
from noback.directions.philox import Array, Place
from noback.values import Move

try:
    _numba: ModuleType | None = importlib.import_module("noback.directions.philox_numba")
except ImportError:  # the twin serves: slow, the same bits
    _numba = None


def perturb(
    out: Array,
    weight: Array,
    place: Place,
    family: Family,
    points: Sequence[Move],
    *,
    rows: NDArray[np.int64] | None = None,
    threads: int = 1,
) -> None:
    """Write the weight (or its chosen rows, ascending) at each point to `out` [points, rows, columns]."""
    if _numba is None:
        out[...] = philox.perturbed(weight, place, family, points, rows)
    else:
        _numba.perturbed(weight, place, family, points, rows, out=out, threads=threads)


def perturb_together(
    parts: Sequence[tuple[Array, Array, Place]], family: Family, points: Sequence[Move], *, threads: int = 1
) -> None:
    """Write each weight of (out, weight, place) at each point to its `out` [points, rows, columns]."""
    if _numba is None:
        for out, weight, place in parts:
            out[...] = philox.perturbed(weight, place, family, points)
    else:
        _numba.perturb(parts, family, points, threads=threads)


def advance(parts: Sequence[tuple[Array, Place]], family: Family, moves: Sequence[Move], *, threads: int = 1) -> None:
    """Apply the moves to each array in place."""
    if _numba is None:
        philox.advance(parts, family, moves)
    else:
        _numba.advance(parts, family, moves, threads=threads)

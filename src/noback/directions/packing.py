"""Moves packed for a GPU: 32-bit words on the device, and what of their order a kernel is compiled for."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from noback.directions.families import Noise
from noback.values import Move

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """Moves or points on the device."""

    words: Tensor
    count: int
    terms: int
    shared: int
    mirrored: bool

    @property
    def options(self) -> dict[str, Any]:
        """What a kernel that writes all points by tiles is compiled for."""
        return {"SHARED": self.shared, "MIRRORED": self.mirrored, "ALONE": self.shared == self.count}


def order_of(moves: Sequence[Move]) -> Order:
    """What of the moves a kernel or a captured forward depends on: shared seeds, mirrored points, terms of each."""
    together = _shared(moves)
    sides = [move.terms[0].coefficient for move in moves] if together == 2 else []
    opposite = bool(sides) and all(0.0 != one == -other for one, other in zip(sides[::2], sides[1::2], strict=True))
    return (together, opposite, *(len(move.terms) for move in moves))


def pack(noise: Noise, moves: Sequence[Move]) -> NDArray[np.int32]:
    """Moves as 32-bit words: folded tables, seeds, where each move's terms begin, rounding seeds and decays.

    Of a family of low rank, at the end, how far each product goes.
    """
    terms = [term for move in moves for term in move.terms]
    starts = accumulate((len(move.terms) for move in moves), initial=0)
    rest = struct.pack(
        f"={len(terms)}Q{len(moves) + 1}i{len(moves)}Q{len(moves)}f",
        *(term.seed for term in terms), *starts, *(move.rounding_seed for move in moves),
        *(move.decay for move in moves),
    )  # fmt: skip
    coefficients = np.array([term.coefficient for term in terms], dtype=np.float64)
    with np.errstate(over="ignore"):  # as `fold` and `part_size` have them, of all terms at once
        tables = (noise.values.astype(np.float64) * coefficients[:, None]).astype(np.float32)
        sizes = (coefficients / math.sqrt(noise.rank or 1)).astype(np.float32).repeat(noise.rank)
    return np.concatenate([tables.view(np.int32).ravel(), np.frombuffer(rest, dtype=np.int32), sizes.view(np.int32)])


def _shared(moves: Sequence[Move]) -> int:
    """How many points in a row share their only term's seed, such as a direction's two sides; 0: no such order."""
    if not moves or any(len(move.terms) != 1 for move in moves):
        return 0
    seeds = [move.terms[0].seed for move in moves]
    for size in (4, 3, 2):
        groups = [seeds[begin : begin + size] for begin in range(0, len(seeds), size)]
        if len(seeds) % size == 0 and all(len(set(group)) == 1 for group in groups):
            return size
    return 1

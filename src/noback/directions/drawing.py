"""Fresh weights from the noise: the same on any device and in any version."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from noback.directions import philox
from noback.directions.normal import Normal
from noback.directions.philox import Place
from noback.values import Move, Term


def tensor_id(name: str) -> int:
    """A tensor's place in the noise: the first 32 bits of BLAKE2s of its name."""
    return int.from_bytes(hashlib.blake2s(name.encode()).digest()[:4], "little")


def drawn(shape: tuple[int, ...], name: str, purpose: str, scale: float) -> NDArray[np.float32]:
    """Normal values of this scale for a tensor of this name; `purpose` (a use and its seed) parts streams of noise."""
    seed = int.from_bytes(hashlib.blake2s(purpose.encode(), digest_size=8).digest(), "little")
    nothing = np.zeros((shape[0], int(np.prod(shape[1:]))), dtype=np.float32)
    place = Place(tensor_id(name), nothing.shape[1])
    point = Move((Term(seed, scale),))
    values: NDArray[np.float32] = philox.perturbed(nothing, place, Normal(), [point])[0]
    return values.reshape(shape)

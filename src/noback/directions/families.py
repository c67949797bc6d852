"""The noise families by kind. A new family is one file and one row here."""

from __future__ import annotations

import typing
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from noback.directions.normal import Normal
from noback.directions.rademacher import Rademacher
from noback.directions.ranked import KeptColumns, LowRank, Rank1
from noback.errors import InputError

AnyNoise = Normal | Rademacher | Rank1 | LowRank | KeptColumns
FAMILIES: dict[str, AnyNoise] = {noise.kind: noise() for noise in typing.get_args(AnyNoise)}


class Noise(Protocol):
    """A noise family: an element is `values[its bits]`."""

    kind: ClassVar[str]
    bits: ClassVar[int]  # an element takes: 1, 2, 4 or 8
    values: ClassVar[NDArray[np.float32]]  # [2 ** bits], of zero mean and unit variance

    @property
    def rank(self) -> int:
        """How many products of a row's sign and a column's a matrix's direction is; 0: each element has its own."""

    @property
    def period(self) -> int | None:
        """For how many steps the signs of a matrix's columns stay; None: each step has its own."""

    def __hash__(self) -> int:
        """Folded tables are kept by family."""


def check_noise(noise: Noise) -> None:
    """Refuse a family that the kernels cannot make: an element's bits must lie within one byte of a Philox call."""
    if noise.bits not in (1, 2, 4, 8) or noise.values.shape != (1 << noise.bits,):
        raise InputError(
            f"noise {noise.kind!r} has {noise.bits} bits an element and {noise.values.size} values; "
            "expected 1, 2, 4 or 8 bits and 2 ** bits values"
        )

"""Low-rank noise: a matrix's direction is a sum of products of a random sign a row and one a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from noback.directions.rademacher import Rademacher
from noback.options import option, whole
from noback.values import MOST_STEPS

MOST_RANK = 256  # beyond it no product is thin


@dataclass(frozen=True, slots=True)
class Rank1:
    """Of a matrix a b^T, a random sign a row times one a column; of a vector -1 or +1 an element."""

    kind: ClassVar[str] = "rank1"
    bits: ClassVar[int] = Rademacher.bits  # of a vector's elements
    values: ClassVar[NDArray[np.float32]] = Rademacher.values
    rank: ClassVar[int] = 1
    period: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class LowRank:
    """Of a matrix the sum of `rank` products as in `rank1`, over the root of `rank`; of a vector -1 or +1."""

    kind: ClassVar[str] = "low_rank"
    bits: ClassVar[int] = Rademacher.bits
    values: ClassVar[NDArray[np.float32]] = Rademacher.values
    period: ClassVar[None] = None

    rank: int = option(4, "products of a sign a row and one a column that a direction is the sum of")

    def __post_init__(self) -> None:
        whole("noise.rank", self.rank, MOST_RANK)


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """As `low_rank`, but the columns' signs stay for `period` steps; those of the rows are new each step (LOZO)."""

    kind: ClassVar[str] = "kept_columns"
    bits: ClassVar[int] = Rademacher.bits
    values: ClassVar[NDArray[np.float32]] = Rademacher.values

    rank: int = option(2, "products that a direction is the sum of, the columns' signs kept")
    period: int = option(50, "steps for which a direction's columns keep their signs")

    def __post_init__(self) -> None:
        whole("noise.rank", self.rank, MOST_RANK)
        whole("noise.period", self.period, MOST_STEPS)

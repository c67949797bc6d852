"""Rademacher noise: one bit an element chooses -1 or +1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rademacher:
    """-1 or +1, with equal probability."""

    kind: ClassVar[str] = "rademacher"
    bits: ClassVar[int] = 1
    values: ClassVar[NDArray[np.float32]] = np.array([-1.0, 1.0], dtype=np.float32)
    rank: ClassVar[int] = 0
    period: ClassVar[None] = None

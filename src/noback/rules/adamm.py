"""AdaMM: Adam that divides by the largest mean square so far, so that no step along a weight grows again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noback.rules.adam import Adam


@dataclass(frozen=True, slots=True)
class AdaMM(Adam):
    """w <- (1 - lr wd) w - lr m / (sqrt(u) + tiny), u the largest v so far; m and v as Adam's, not made unbiased.

    Three float32 numbers a weight, or four; else as Adam: for adapters such as LoRA, refused beyond 33 million weights.
    """

    kind: ClassVar[str] = "adamm"
    keeps_largest: ClassVar[bool] = True

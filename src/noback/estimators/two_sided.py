"""The two-sided estimator: the slope along a direction from a loss on either side of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from noback.errors import InputError
from noback.estimators.ties import AdaptTies
from noback.options import option, positive, whole
from noback.values import Estimate, Move, Term, to_float32


@dataclass(frozen=True, slots=True)
class TwoSided:
    """SPSA, and n-SPSA with several directions: two forwards a direction."""

    kind: ClassVar[str] = "two_sided"

    eps: float | None = option(
        None,
        "how far to either side a loss is taken; none: 1e-3, with prefix 3e-2; in bfloat16 1e-3, with lora 1e-2, "
        "with prefix 1e-1",
    )
    directions: int = option(1, "directions a step; each costs two forwards")
    adapt_ties: AdaptTies | None = option(None, "raise eps while too many slopes are zero; none: keep it")

    def __post_init__(self) -> None:
        whole("directions", self.directions)
        if self.eps is not None:
            positive("eps", self.eps)
        largest = None if self.adapt_ties is None else self.adapt_ties.largest
        if largest is not None and self.eps is not None and largest < self.eps:
            raise InputError(f"estimator.adapt_ties.largest is {largest!r}; expected eps, {self.eps!r}, or more")

    @property
    def forwards(self) -> int:
        """Forwards of a batch in one step."""
        return 2 * self.directions

    @property
    def _eps(self) -> float:
        if self.eps is None:
            raise InputError("the estimator has no eps; expected a number above zero")
        return self.eps

    def points(self, seeds: Sequence[int]) -> list[Move]:
        """Each direction's two sides, one after the other."""
        return [Move((Term(seed, side * self._eps),)) for seed in seeds for side in (1.0, -1.0)]

    def estimate(self, seeds: Sequence[int], losses: Sequence[float]) -> Estimate:
        """The slope of each direction, in the precision that the journal keeps."""
        pairs = list(zip(losses[::2], losses[1::2], strict=True))
        slopes = tuple(to_float32((plus - minus) / (2.0 * self._eps)) for plus, minus in pairs)
        return Estimate(to_float32(sum(losses) / len(losses)), tuple(seeds), slopes)

    def slopes(self, losses: Tensor) -> Tensor:
        """The slopes that `estimate` gives, to the bit, as float64 where the losses (float64) are."""
        width = losses.new_full((1,), 2.0 * self._eps)  # a GPU divides by a number that is not its own less exactly
        return ((losses[::2] - losses[1::2]) / width).float().double()

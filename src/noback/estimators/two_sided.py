"""The two-sided estimator: the slope along a direction from a loss on either side of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.estimators.base import Estimator, Search, check_search, known_eps
from noback.options import option
from noback.usual import usual_text
from noback.values import Move, Term


@dataclass(frozen=True, slots=True)
class TwoSided(Estimator):
    """SPSA, and n-SPSA with several directions: two forwards a direction."""

    kind: ClassVar[str] = "two_sided"
    mirrored: ClassVar[bool] = True

    eps: float | None = option(None, f"how far from the weights losses are taken; none: {usual_text('eps')}")
    directions: int = option(1, "directions a step; each costs two forwards")

    def __post_init__(self) -> None:
        check_search(self.eps, self.directions)

    @property
    def forwards(self) -> int:
        """Two a direction."""
        return 2 * self.directions

    def search(self, seeds: Sequence[int]) -> Search:
        """Each direction's two sides, one after the other."""
        eps = known_eps(self.eps)
        losses = yield [Move((Term(seed, side * eps),)) for seed in seeds for side in (1.0, -1.0)]
        return (losses[::2] - losses[1::2]) / (2.0 * eps)

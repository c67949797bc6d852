"""Two-sided slopes weighted by curvature (1.5-SPSA): a direction along which the loss bends strongly counts less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.estimators.base import Estimator, Search, check_search, known_eps
from noback.options import option
from noback.usual import usual_text
from noback.values import UNPERTURBED, Move, Term


@dataclass(frozen=True, slots=True)
class CurvatureWeighted(Estimator):
    """A slope times 1 / max(1, |k|^power), where k = (l+ - 2 l0 + l-) / eps^2: 2 n + 1 forwards for n directions."""

    kind: ClassVar[str] = "curvature"
    mirrored: ClassVar[bool] = True
    figures: ClassVar[tuple[str, ...]] = ("weight",)  # the mean over the directions

    eps: float | None = option(None, f"how far from the weights losses are taken; none: {usual_text('eps')}")
    directions: int = option(4, "directions a step; each costs two forwards, and one more is taken at the weights")
    power: float = option(0.1, "how strongly curvature counts")

    def __post_init__(self) -> None:
        check_search(self.eps, self.directions)
        if not 0 <= self.power <= 1:
            raise InputError(f"estimator.power is {self.power!r}; expected a number from 0 to 1")

    @property
    def forwards(self) -> int:
        """Two a direction, and one at the weights."""
        return 2 * self.directions + 1

    def search(self, seeds: Sequence[int]) -> Search:
        """Each direction's two sides, one after the other, then the weights as they are."""
        eps = known_eps(self.eps)
        losses = yield [*(Move((Term(seed, side * eps),)) for seed in seeds for side in (1.0, -1.0)), UNPERTURBED]
        plus, minus, still = losses[:-1:2], losses[1:-1:2], losses[-1]
        weights = 1.0 / (abs((plus - 2.0 * still + minus) / eps**2) ** self.power).clip(1.0)
        return weights * (plus - minus) / (2.0 * eps), weights.mean()[None]

    def unit(self, figures: Sequence[float]) -> float:
        """What the weight took away."""
        return 1.0 / figures[0]

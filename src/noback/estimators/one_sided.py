"""The one-sided estimator (FZOO): one loss at the weights, one a direction, and steps divided by the losses' spread."""

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
class OneSided(Estimator):
    """FZOO (Dang et al., 2025): N directions for N + 1 forwards; a slope is a rise of the loss over the rises' spread.

    A step's length does not shrink as the losses level off, so the learning rate should: `--schedule linear`.
    """

    kind: ClassVar[str] = "one_sided"
    figures: ClassVar[tuple[str, ...]] = ("spread",)
    usual_noise: ClassVar[str] = "rademacher"
    slope_unit: ClassVar[str] = "spreads of the losses"

    eps: float | None = option(None, f"how far from the weights losses are taken; none: {usual_text('eps')}")
    directions: int = option(8, "directions a step; each costs one forward, and one more is taken at the weights")

    def __post_init__(self) -> None:
        check_search(self.eps, self.directions)
        if self.directions < 2:
            raise InputError(f"directions is {self.directions}; estimator 'one_sided' needs 2 or more to see a spread")

    @property
    def forwards(self) -> int:
        """One a direction, and one at the weights."""
        return self.directions + 1

    def search(self, seeds: Sequence[int]) -> Search:
        """The weights as they are, then one side of each direction; where the losses are all one, nothing moves."""
        eps = known_eps(self.eps)
        losses = yield [UNPERTURBED, *(Move((Term(seed, eps),)) for seed in seeds)]
        around, still = losses[1:], losses[0]
        spread = ((around - around.mean()) ** 2).mean() ** 0.5
        flat = spread == 0.0
        return (around - still) * ~flat / (spread + flat), spread[None]

    def unit(self, figures: Sequence[float]) -> float:
        """A rise of one spread over the distance eps."""
        return figures[0] / known_eps(self.eps)

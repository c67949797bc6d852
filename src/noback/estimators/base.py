"""What an estimator promises, and the one driver that runs its search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from noback.errors import InputError
from noback.options import positive, whole
from noback.values import MOST_DIRECTIONS, Estimate, Move, to_float32

Array = Any  # float64 [n], NumPy's or torch's: a search uses only the operators that both have
Search = Generator[list[Move], Array, Array | tuple[Array, Array]]


class Estimator(Protocol):
    """Turns losses at perturbed points into one slope a direction; it never sees a model.

    A method is a frozen dataclass of options that inherits from this class and writes `search`.
    """

    kind: ClassVar[str]  # its name in TOML and on the command line
    figures: ClassVar[tuple[str, ...]] = ()  # further numbers that each record of the journal keeps
    fixed_points: ClassVar[bool] = True  # one round of points that no loss decides: a GPU may run ahead of the journal
    mirrored: ClassVar[bool] = False  # pairs of points, +eps and -eps: the mean loss shows the curvature
    usual_noise: ClassVar[str] = "normal"  # the noise family where none is named
    slope_unit: ClassVar[str] = "loss per unit"  # of what a record keeps; for people

    @property
    def eps(self) -> float | None:
        """How far from the weights losses are taken; None: the usual one."""
        ...

    @property
    def directions(self) -> int:
        """Directions a step; each has a seed, and a slope in the record."""
        ...

    @property
    def forwards(self) -> int:
        """Forwards of a batch in one step."""
        ...

    def search(self, seeds: Sequence[int]) -> Search:
        """Yield points, be sent the loss at each, and return the slopes, or (slopes, figures).

        A second `yield` is a second round of points.
        """
        ...

    def unit(self, _figures: Sequence[float]) -> float:
        """The slope of the loss that a recorded slope of 1 stands for; other than 1 where a method normalises."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, in the arrays that it was given."""

    losses: Array  # of the first round
    slopes: Array
    figures: Array


def run_search(estimator: Estimator, seeds: Sequence[int], score: Callable[[list[Move]], Array]) -> Found:
    """Run an estimator's search; `score` gives the losses at some points, float64, wherever they are."""
    search = estimator.search(seeds)
    points, first = next(search), None
    while True:
        losses = score(points)
        first = losses if first is None else first
        try:
            points = search.send(losses)
        except StopIteration as end:
            slopes, figures = end.value if isinstance(end.value, tuple) else (end.value, losses[:0])
            return Found(first, slopes, figures)


def estimate(estimator: Estimator, seeds: Sequence[int], score: Callable[[list[Move]], Sequence[float]]) -> Estimate:
    """What a search gives, in the precision that the journal keeps; `score` gives the losses at some points."""
    with np.errstate(all="ignore"):  # a loss that is not finite is found by the caller
        found = run_search(estimator, seeds, lambda points: np.array(score(points), dtype=np.float64))
    return estimate_of(seeds, found.losses.tolist(), found.slopes.tolist(), found.figures.tolist())


def estimate_of(
    seeds: Sequence[int], losses: Sequence[float], slopes: Sequence[float], figures: Sequence[float]
) -> Estimate:
    """An estimate from numbers on the host; its loss is the mean over the first round's points."""
    loss = to_float32(sum(losses) / len(losses))
    return Estimate(loss, tuple(seeds), tuple(map(to_float32, slopes)), tuple(map(to_float32, figures)))


def check_search(eps: float | None, directions: int) -> None:
    """Refuse an eps or a number of directions that no search can use."""
    whole("directions", directions, MOST_DIRECTIONS)
    if eps is not None:
        positive("eps", eps)


def known_eps(eps: float | None) -> float:
    """The eps of an estimator that is to be used: it must have one."""
    if eps is None:
        raise InputError("the estimator has no eps; expected a number above zero")
    return eps

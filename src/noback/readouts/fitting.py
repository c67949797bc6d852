"""The fit of a readout: penalised softmax regression on features, on top of logits that are there already.

Minimises the weighted mean of cross-entropy(base + D h + d) + decay / 2 |D|^2; biases are free. Features are centred
and turned to their principal axes, which changes no answer. There, scaled by the bound of the loss's curvature
(Boehning, 1992), all axes are alike, so a few steps of L-BFGS reach the minimum. Float64, one order: the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ROOT = 10**0.5  # from a decay that is tried to the next
_TRIED = 16  # decays at most, from the features' largest spread down: seven powers of ten
_WORSE = 3  # of them in a row with a higher loss of held-out examples: weaker ones are not tried
_FEW, _FOLDS, _MORE_FOLDS = 128, 5, 8  # examples up to which there are more folds
_ROUNDS, _MEMORY = 500, 8  # of L-BFGS
_EXACT, _NEAR = 1e-6, 1e-3  # of the scaled gradient's length, for the fit itself and for the choice of its decay


class Given(NamedTuple):
    """What a readout is fitted to."""

    base: Array  # [examples, labels]: logits without the readout
    features: Array  # [examples, width]
    gold: NDArray[np.int64]  # [examples]
    weights: Array  # [examples], 1 on average
    biased: bool  # whether labels have biases


class Fit(NamedTuple):
    """A readout that was fitted."""

    values: Array  # [labels, width], and a column of biases where there are some
    decay: float
    loss: float  # of the examples, weighted
    held_out: float | None  # loss of held-out examples by which the decay was chosen; none: it was given


def fit(given: Given, decay: float) -> Fit:
    """The minimum for one decay."""
    turned = _turned(given)
    found = _minimum(turned, decay, turned.zero(), _EXACT)
    return Fit(turned.back(found), decay, turned.loss(found), None)


def fit_by_validation(given: Given, tell: Callable[[int, int], None]) -> Fit:
    """The minimum for the decay under which held-out examples have the lowest loss; of equals the stronger."""
    turned = _turned(given)
    folds = _folds(given.gold)
    parts = [(turned.part(folds != fold), turned.part(folds == fold)) for fold in range(folds.max() + 1)]
    starts, best, worse = [turned.zero() for _ in parts], (np.inf, 0.0), 0
    for number in range(_TRIED):
        decay = 3 * float(turned.spread.max(initial=1e-9)) / _ROOT**number
        starts = [_minimum(seen, decay, start, _NEAR) for (seen, _), start in zip(parts, starts, strict=True)]
        total = sum(held.total(found) for (_, held), found in zip(parts, starts, strict=True))
        loss = total / float(given.weights.sum())
        best, worse = ((loss, decay), 0) if loss < best[0] else (best, worse + 1)
        tell(number + 1, _TRIED)
        if worse == _WORSE:
            break
    tell(_TRIED, _TRIED)
    return fit(given, best[1])._replace(held_out=best[0])


def _folds(gold: NDArray[np.int64]) -> NDArray[np.int64]:
    """The fold of each example: labels in equal shares, examples in their order."""
    count = min(_MORE_FOLDS if len(gold) <= _FEW else _FOLDS, len(gold))
    folds = np.empty(len(gold), np.int64)
    folds[np.argsort(gold, kind="stable")] = np.arange(len(gold)) % count
    return folds


@dataclass(frozen=True, slots=True)
class _Turned:
    """Examples on the principal axes of their features; rows are [labels, axes + 1], the last column free."""

    base: Array
    along: Array  # [examples, axes], and a column of ones where there are biases, else of zeros
    gold: NDArray[np.int64]
    weights: Array
    axes: Array  # [width, axes]
    centre: Array  # [width]
    spread: Array  # [axes]: mean square along each
    biased: bool

    def zero(self) -> Array:
        return np.zeros((self.base.shape[1], self.along.shape[1]))

    def part(self, some: NDArray[np.bool_]) -> _Turned:
        """Some of the examples; axes and spread stay those of all."""
        rest = self.axes, self.centre, self.spread, self.biased
        return _Turned(self.base[some], self.along[some], self.gold[some], self.weights[some], *rest)

    def scores(self, rows: Array) -> tuple[Array, Array]:
        """The cross-entropy of each example, and its probabilities."""
        logits = self.base + self.along @ rows.T
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        sums = chances.sum(axis=1, keepdims=True)
        return np.log(sums[:, 0]) - logits[np.arange(len(self.gold)), self.gold], chances / sums

    def total(self, rows: Array) -> float:
        """The weighted sum of cross-entropies."""
        return float(self.weights @ self.scores(rows)[0])

    def loss(self, rows: Array) -> float:
        """Their weighted mean."""
        return self.total(rows) / float(self.weights.sum())

    def back(self, rows: Array) -> Array:
        """Values for features as they are given."""
        values: Array = rows[:, :-1] @ self.axes.T
        return np.concatenate([values, rows[:, -1:] - values @ self.centre[:, None]], axis=1) if self.biased else values


def _turned(given: Given) -> _Turned:
    shares = given.weights / given.weights.sum()
    centre = shares @ given.features if given.biased else np.zeros(given.features.shape[1])
    centred = given.features - centre
    axes, spread = _principal(centred * np.sqrt(shares)[:, None])
    last = np.ones if given.biased else np.zeros
    along = np.concatenate([centred @ axes, last((len(centred), 1))], axis=1)
    return _Turned(given.base, along, given.gold, given.weights, axes, centre, spread, given.biased)


def _principal(rows: Array) -> tuple[Array, Array]:
    """The principal axes [width, axes] of rows [examples, width], and the sum of squares along each."""
    wide = rows.shape[0] < rows.shape[1]
    squares, turned = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = squares > 1e-10 * squares[-1] if squares[-1] > 0 else np.zeros(len(squares), np.bool_)
    found, spread = turned[:, kept], squares[kept]
    return (rows.T @ found / np.sqrt(spread) if wide else found), spread


def _minimum(turned: _Turned, decay: float, start: Array, near: float) -> Array:
    """The rows [labels, axes + 1] at which the penalised loss is least, by L-BFGS in scaled coordinates."""
    scale: Array = np.append(1 / np.sqrt(turned.spread / 2 + decay), np.sqrt(2.0))
    pulled = np.append(np.full(len(turned.spread), decay), 0.0)
    shares = turned.weights / turned.weights.sum()

    def look(scaled: Array) -> tuple[float, Array]:
        rows = scaled * scale
        losses, chances = turned.scores(rows)
        chances[np.arange(len(losses)), turned.gold] -= 1.0
        slopes = (chances * shares[:, None]).T @ turned.along + rows * pulled
        return float(shares @ losses + 0.5 * (rows**2 @ pulled).sum()), slopes * scale

    return _descended(look, start / scale, near) * scale


def _descended(look: Callable[[Array], tuple[float, Array]], point: Array, near: float) -> Array:
    """L-BFGS with steps halved until they lower the loss enough; the curvature is at most about 1 on every axis."""
    loss, slope = look(point)
    pairs: list[tuple[Array, Array]] = []
    for _ in range(_ROUNDS):
        if np.sqrt((slope**2).sum()) <= near:
            break
        way, length = -_newton(slope, pairs), 1.0
        falls = float((way * slope).sum())
        while True:
            further = point + length * way
            found, there = look(further)
            if found <= loss + 1e-4 * length * falls or length < 1e-10:
                break
            length /= 2
        if found >= loss:  # as low as float64 can tell
            break
        moved, bent = further - point, there - slope
        pairs = [*pairs, (moved, bent)][-_MEMORY:] if (moved * bent).sum() > 1e-14 else pairs
        point, loss, slope = further, found, there
    return point


def _newton(slope: Array, pairs: list[tuple[Array, Array]]) -> Array:
    """The slope times what the last moves say of the inverse curvature."""
    way, along = slope.copy(), list[float]()
    for moved, bent in reversed(pairs):
        along.append(float((moved * way).sum() / (moved * bent).sum()))
        way -= along[-1] * bent
    if pairs:
        moved, bent = pairs[-1]
        way *= (moved * bent).sum() / (bent**2).sum()
    for (moved, bent), far in zip(pairs, reversed(along), strict=True):
        way += moved * (far - (bent * way).sum() / (moved * bent).sum())
    return way

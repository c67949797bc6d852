"""Moves that go weight by weight: a step's sum is divided by the size that it had there, as Adam and AdaMM do.

What is kept of earlier steps is two or three float32 numbers a weight, in memory alone: who replays the moves from the
first on has them again, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noback.directions.backend import Backend, Part
from noback.directions.passing import Passing
from noback.errors import NobackError
from noback.values import Adaptive, Move


@dataclass(slots=True)
class Moments:
    """What is kept of one tensor, float32 of its shape, and since how many steps."""

    mean: Tensor
    square: Tensor
    largest: Tensor  # mean square so far
    exact: Tensor  # the weights before they are rounded to their type; of float32 ones, their own memory
    steps: int = 0


class Adapting(Passing):
    """Another backend, and moves that are adaptive besides."""

    def __init__(
        self,
        make: Callable[[Mapping[str, Part]], Backend],
        parts: Mapping[str, Part],
        moments: dict[str, Moments],
    ) -> None:
        """`moments`: what is kept by the names of the parts; it outlives this object, which a moved model does not."""
        super().__init__(make(parts))
        self._make, self._parts, self._moments = make, parts, moments

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to every tensor in place, in their order."""
        if not any(move.adaptive for move in moves):
            super().advance(moves, coefficients)
            return
        for move in moves:
            for name, part in self._parts.items():
                self._adapt(name, part, move)

    def _adapt(self, name: str, part: Part, move: Move) -> None:
        assert move.adaptive is not None
        asked, weights = move.adaptive, part.tensor.detach()
        if asked.step == 0:
            mean, square = (torch.zeros_like(weights, dtype=torch.float32) for _ in range(2))
            self._moments[name] = Moments(mean, square, square, weights.float())
        kept = self._moments.get(name)
        if kept is None or kept.steps != asked.step:
            raise NobackError(f"step {asked.step} does not follow those whose moments are kept; resume the run")
        if kept.exact.dtype == weights.dtype:
            kept.exact = weights  # of a model that was moved, too
        # The sum of the directions, as the kernels make it: what is added to zeros.
        added = Part(torch.zeros_like(weights, dtype=torch.float32), part.place, decayed=False)
        self._make({name: added}).advance([Move(move.terms)])
        if part.decayed and move.decay != 1.0:
            kept.exact.mul_(move.decay)
        kept.exact.add_(_step(kept, added.tensor, asked))
        kept.steps += 1
        if kept.exact is not weights:
            weights.copy_(kept.exact)


def _step(kept: Moments, added: Tensor, asked: Adaptive) -> Tensor:
    """How far each weight goes. One operation after the other: a fused one would round otherwise on a GPU."""
    kept.mean.mul_(asked.beta1).add_(added * (1 - asked.beta1))
    kept.square.mul_(asked.beta2).add_((added * added) * (1 - asked.beta2))
    if asked.keeps_largest:
        kept.largest = torch.maximum(kept.largest, kept.square)
        return kept.mean / (kept.largest.sqrt() + asked.tiny) * asked.lr
    size = (kept.square / (1 - asked.beta2 ** (asked.step + 1))).sqrt()
    return kept.mean / (1 - asked.beta1 ** (asked.step + 1)) / (size + asked.tiny) * asked.lr

"""A step whose move a GPU works out by itself: the losses are read, and the record written, while it goes on.

The move is made there and the record here, by the same float64 operations in the same order: replaying the record
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noback.engines import Local
from noback.estimators import TwoSided
from noback.objectives import CrossEntropy, LanguageModel
from noback.rules import Pace
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

MeanLoss = CrossEntropy | LanguageModel  # objectives that PyTorch computes where the label logits are


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch's label logits and losses at some points, on their way to the host."""

    there: Tensor  # the losses, float64 [points], where the model is
    _losses: Tensor
    _logits: Tensor
    _arrived: Any

    def losses(self) -> list[float]:
        """The loss at each point; waits for it."""
        self._wait()
        found: list[float] = self._losses.tolist()
        return found

    def outputs(self) -> list[Tensor]:
        """The label logits at each point; waits for them."""
        self._wait()
        return list(self._logits)

    def _wait(self) -> None:
        if self._arrived is not None:
            self._arrived.synchronize()


def scored(engine: Local, batch: Batch, points: Sequence[Move], objective: MeanLoss) -> Scored:
    """Begin to score a batch at some points; nothing waits for a GPU."""
    logits = engine.logits(batch, points)
    losses = objective.losses(logits, batch.gold.to(logits.device, non_blocking=True))
    if not logits.is_cuda:
        return Scored(losses, losses, logits, None)
    with torch.cuda.device(logits.device):
        found = Scored(losses, _fetched(losses), _fetched(logits), torch.cuda.Event())  # type: ignore[no-untyped-call]
        found._arrived.record()
    return found


def advance(weights: Weights, found: Scored, seeds: Sequence[int], estimator: TwoSided, pace: Pace) -> None:
    """Move the weights by what was scored, whether or not it has arrived."""
    weights.advance_along(seeds, pace.share * estimator.slopes(found.there), pace.decay)


def _fetched(tensor: Tensor) -> Tensor:
    """A copy on the host, there when the stream's next event is."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

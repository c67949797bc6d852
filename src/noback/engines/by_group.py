"""Groups of examples, each at points of its own: the slow way, which is right for any engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from noback.tasks import Batch
from noback.values import Move


class _Scores(Protocol):
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]: ...


def group_by_group(
    engine: _Scores, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
) -> list[list[Tensor]]:
    """The label logits of each group's examples at that group's points."""
    return [engine.score(batch.part(part), own) for part, own in zip(groups, points, strict=True)]

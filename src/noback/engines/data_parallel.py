"""An engine spread over ranks: each scores its share of (points x examples), and all know every score.

Where several ranks hold one model together they score the same share, and what the first of them has counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from noback.distributed import World, groups_of, share_of
from noback.engines.by_group import group_by_group
from noback.engines.engine import Engine
from noback.engines.generation import Writing
from noback.engines.reuse.planning import Tally
from noback.json_text import json_text
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

T = TypeVar("T")


class DataParallel:
    """Scores a part with the engine of this rank and takes the rest from the others.

    Every rank ends with the same numbers to the bit, so every rank makes the same move and no weight is ever sent.
    """

    runs_ahead = False  # each step waits for the other ranks

    def __init__(self, engine: Engine, world: World, labels: int) -> None:
        """`labels`: of the task, how many logits an example has where its batch brings no candidates."""
        self._engine, self._world, self._labels = engine, world, labels

    @property
    def weights(self) -> Weights:
        """The tuned tensors, whole on every rank."""
        return self._engine.weights

    def ready(self) -> dict[str, Any]:
        """Of the engine that it spreads."""
        return self._engine.ready()

    @property
    def tally(self) -> Tally:
        """Of this rank's share."""
        return self._engine.tally

    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """`score` as one tensor [points, examples, labels]."""
        return torch.stack(self.score(batch, points))

    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point, the same on every rank."""
        world = self._world
        shares = _shares(world, len(points), len(batch))
        labels = self._labels if batch.candidates is None else batch.candidates.width
        most = [max(part.stop - part.start for part in parts) for parts in zip(*shares, strict=True)]
        filled, mine = torch.zeros(*most, labels), shares[world.model]
        scores = self._scored(batch, points, *mine)
        if scores is not None:
            filled[: scores.shape[0], : scores.shape[1]] = scores
        found = torch.empty(len(points), len(batch), labels)
        for (some, examples), part in zip(shares, self._of_models(world.gathered(filled)), strict=True):
            found[some, examples] = part[: some.stop - some.start, : examples.stop - examples.start]
        return list(found)

    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of examples at its own points: one group after the other."""
        return group_by_group(self, batch, groups, points)

    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that the model writes after each prompt, at each point; the prompts are shared out."""
        world = self._world
        part = share_of(len(prompts), world.model, world.models)
        mine = self._engine.write(prompts[part], points, writing) if prompts[part] else [[] for _ in points]
        told = [json.loads(text) for text in self._of_models(world.gathered_bytes(json_text(mine).encode()))]
        return [[tokens for of_rank in told for tokens in of_rank[point]] for point in range(len(points))]

    def _of_models(self, of_ranks: Sequence[T]) -> Sequence[T]:
        """Of what each rank has, that of the first rank of each model: its others have computed the same."""
        return of_ranks[:: self._world.together]

    def _scored(self, batch: Batch, points: Sequence[Move], some: slice, examples: slice) -> Tensor | None:
        """The share of this rank [points, examples, labels]; None where there are fewer examples than ranks."""
        if some.start == some.stop or examples.start == examples.stop:
            return None
        return torch.stack(self._engine.score(batch.part(examples), points[some]))


def _shares(world: World, points: int, examples: int) -> list[tuple[slice, slice]]:
    """Which points and examples are scored by each model, which is one rank's or that of several."""
    groups = groups_of(world.divide, world.models, points)
    models = world.models // groups  # that share the examples of a group's points
    return [
        (share_of(points, model // models, groups), share_of(examples, model % models, models))
        for model in range(world.models)
    ]

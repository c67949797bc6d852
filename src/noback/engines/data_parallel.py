"""An engine spread over ranks: each scores its share of (points x examples), and all know every score.

Where several ranks hold one model together they score the same share, and what the first of them has counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from noback.distributed import World, groups_of, share_of
from noback.engines.by_group import as_one, group_by_group
from noback.engines.engine import Engine
from noback.engines.generation import Writing
from noback.engines.readout import refuse_examples, without_numbers
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

    def __init__(self, engine: Engine, world: World, labels: int, unparted: int = 1) -> None:
        """`labels`: of the task, how many logits an example has where its batch brings no candidates.

        `unparted`: the size of groups of examples that the engine scores together, which are not parted.
        """
        self._engine, self._world, self._labels, self._unparted = engine, world, labels, unparted

    @property
    def weights(self) -> Weights:
        """The tuned tensors, whole on every rank."""
        return self._engine.weights

    def close(self) -> None:
        """Of the engine that it spreads."""
        self._engine.close()

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

    def group_logits(self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]) -> Tensor:
        """`score_groups` as one tensor [points, examples, labels]."""
        return as_one(self.score_groups(batch, groups, points))

    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point, the same on every rank."""
        shares = _shares(self._world, len(points), len(batch), self._unparted)
        some, examples = shares[self._world.model]
        return self._together(shares, self._scored(batch.part(examples), points[some]))

    def exchanged(
        self, batch: Batch, points: Sequence[Move], reduce: Callable[[Tensor, Tensor], Tensor]
    ) -> list[Tensor]:
        """What `reduce` makes of each example's label logits and gold label at each point: the same on every rank.

        Logits that are no numbers are found where they are scored, and refused on every rank: a rank that raised by
        itself would leave the others waiting.
        """
        shares = _shares(self._world, len(points), len(batch), self._unparted)
        some, examples = shares[self._world.model]
        part = batch.part(examples)
        scores = self._scored(part, points[some])
        reduced = [reduce(logits, part.gold) for logits in scores]
        for numbers, logits in zip(reduced, scores, strict=True):
            numbers[torch.from_numpy(without_numbers(logits, part.candidates))] = torch.nan
        mine = torch.stack(reduced) if reduced else reduce(scores.new_empty(0, scores.shape[2]), part.gold[:0])[None]
        found = self._together(shares, mine)
        refuse_examples(torch.stack(found).isnan().any(2).any(0).numpy())
        return found

    def _together(self, shares: Sequence[tuple[slice, slice]], mine: Tensor) -> list[Tensor]:
        """Every rank's part [points, examples, numbers], at its place in the whole: one tensor a point."""
        whole = [max(part.stop for part in parts) for parts in zip(*shares, strict=True)]
        sizes = [(some.stop - some.start, examples.stop - examples.start) for some, examples in shares]
        filled = mine.new_zeros(*(max(counts) for counts in zip(*sizes, strict=True)), mine.shape[2])
        filled[: mine.shape[0], : mine.shape[1]] = mine
        found = mine.new_empty(*whole, mine.shape[2])
        of_models = self._of_models(self._world.gathered(filled))
        for (some, examples), size, part in zip(shares, sizes, of_models, strict=True):
            found[some, examples] = part[: size[0], : size[1]]
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
        part = share_of(len(prompts), world.model, world.models, self._unparted)
        mine = self._engine.write(prompts[part], points, writing) if prompts[part] else [[] for _ in points]
        told = [json.loads(text) for text in self._of_models(world.gathered_bytes(json_text(mine).encode()))]
        return [[tokens for of_rank in told for tokens in of_rank[point]] for point in range(len(points))]

    def _of_models(self, of_ranks: Sequence[T]) -> Sequence[T]:
        """Of what each rank has, that of the first rank of each model: its others have computed the same."""
        return of_ranks[:: self._world.together]

    def _scored(self, part: Batch, points: Sequence[Move]) -> Tensor:
        """The share of this rank [points, examples, labels]; there may be fewer examples or points than ranks."""
        if len(part) and points:
            return torch.stack(self._engine.score(part, points))
        return torch.empty(len(points), len(part), self._labels if part.candidates is None else part.candidates.width)


def _shares(world: World, points: int, examples: int, unparted: int = 1) -> list[tuple[slice, slice]]:
    """Which points and examples are scored by each model, which is one rank's or that of several."""
    groups = groups_of(world.divide, world.models, points)
    models = world.models // groups  # that share the examples of a group's points
    return [
        (share_of(points, model // models, groups), share_of(examples, model % models, models, unparted))
        for model in range(world.models)
    ]

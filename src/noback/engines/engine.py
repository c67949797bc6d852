"""The promise of an engine: score a batch or write at a few points, and leave no trace on the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from noback.engines.generation import Writing
from noback.engines.reuse.planning import Tally
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights


class Engine(Protocol):
    """Shows a batch to a model at a few points, and leaves no trace on the weights."""

    @property
    def weights(self) -> Weights:
        """The tuned tensors; only a rule's move writes them."""
        ...

    def ready(self) -> dict[str, Any]:
        """What a journal's header says of where it scores, beside the model; one that cannot score is refused."""
        ...

    def close(self) -> None:
        """Leave nothing where the model is; the engine is used no more."""
        ...

    @property
    def tally(self) -> Tally:
        """Tokens that were given, and how many of them were not computed again."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether it has `logits` and `group_logits`, on a device that works while the host goes on."""
        ...

    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """`score` as one tensor [points, examples, labels] where the model is, without waiting for it."""
        ...

    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each.

        Where the engine was opened with `features`, what the decoder was given stands beside them: [examples, labels +
        width].
        """
        ...

    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of the batch's examples at that group's own points."""
        ...

    def group_logits(self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]) -> Tensor:
        """`score_groups`, of as many points for each, as one tensor [points, examples, labels], without waiting."""
        ...

    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that a causal model writes after each prompt, at each point."""
        ...

"""The promise of an engine, and the table of engines: a further one is a file and a row."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from noback.engines.generation import Writing
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

UNPERTURBED = Move(())  # the point at which the weights stand

# The kind of an option object (`options.py`) -> the class that it opens; its file is imported when it is named.
ENGINES = {"local": "noback.engines.local:Local"}


class Engine(Protocol):
    """Shows a batch to a model at a few points, and leaves no trace on the weights."""

    @property
    def weights(self) -> Weights:
        """The tuned tensors; only a rule's move writes them."""
        ...

    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        ...

    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that a causal model writes after each prompt, at each point."""
        ...


def engine_class(kind: str) -> Any:
    """The class of an engine by its kind."""
    module, name = ENGINES[kind].split(":")
    return getattr(importlib.import_module(module), name)

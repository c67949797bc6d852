"""Adapters: what is attached to a model, and which of its tensors are tuned."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from noback.options import check_seed, option


@dataclass(frozen=True, slots=True)
class Full:
    """Nothing is attached; every floating-point parameter of the model is tuned."""

    kind: ClassVar[str] = "full"
    head_seed: ClassVar[None] = None  # the label words are read at the mask

    def tuned(self, model: nn.Module, _fresh: Collection[str]) -> dict[str, Tensor]:
        """The tuned tensors by the name they have in the model; a tied one goes by its first name."""
        return {name: tensor for name, tensor in model.named_parameters() if tensor.is_floating_point()}


@dataclass(frozen=True, slots=True)
class Head:
    """The architecture's own classification head on the first token, fresh and random, in place of the label words."""

    kind: ClassVar[str] = "head"

    alone: bool = option(False, "tune the head alone; false: the whole model with it")
    seed: int = option(0, "seed of the fresh head's weights")

    def __post_init__(self) -> None:
        check_seed("adapter.seed", self.seed, 2**64)

    @property
    def head_seed(self) -> int:
        """The seed of the fresh head."""
        return self.seed

    def tuned(self, model: nn.Module, fresh: Collection[str]) -> dict[str, Tensor]:
        """The fresh tensors, or every one."""
        return {
            name: tensor
            for name, tensor in model.named_parameters()
            if tensor.is_floating_point() and (not self.alone or name in fresh)
        }


AnyAdapter = Full | Head

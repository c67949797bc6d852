"""A fresh classification head in place of the label words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from noback.adapters.base import Adapter, floating
from noback.options import check_seed, option


@dataclass(frozen=True, slots=True)
class Head(Adapter):
    """The architecture's own classification head on the first token, fresh and random, in place of the label words."""

    kind: ClassVar[str] = "head"
    tunes_base: ClassVar[bool] = True

    alone: bool = option(False, "tune the head alone; false: the whole model with it")
    seed: int = option(0, "seed of the fresh head's weights")

    def __post_init__(self) -> None:
        check_seed("adapter.seed", self.seed, 2**64)

    @property
    def head_seed(self) -> int:
        """The seed of the fresh head."""
        return self.seed

    def attach(self, model: Any, fresh: Collection[str], _seed: int) -> dict[str, Tensor]:
        """The fresh tensors, or every one."""
        return {name: tensor for name, tensor in floating(model).items() if not self.alone or name in fresh}

    def save(self, model: Any, folder: str) -> None:
        """The whole classifier as a Hugging Face folder."""
        model.save_pretrained(folder)

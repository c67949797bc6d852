"""Adapters: what is attached to a model, and which of its tensors are tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Full:
    """Nothing is attached; every floating-point parameter of the model is tuned."""

    kind: ClassVar[str] = "full"

    def tuned(self, model: nn.Module) -> dict[str, Tensor]:
        """The tuned tensors by the name they have in the model; a tied one goes by its first name."""
        return {name: tensor for name, tensor in model.named_parameters() if tensor.is_floating_point()}

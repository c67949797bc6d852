"""Small weights alone: of each tensor only those below a quantile of its magnitudes are perturbed and moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from noback.adapters.full import Full
from noback.errors import InputError
from noback.options import option


@dataclass(frozen=True, slots=True)
class Sparse(Full):
    """Full tuning of the smallest weights of each tensor (Sparse-MeZO); the large ones stay as they are.

    Which these are follows from the base alone, so a replay finds the same ones. A mask is kept, a byte a weight, and
    an update holds aside what stays of one tensor at a time; no copy of the weights is stored.
    """

    kind: ClassVar[str] = "sparse"
    in_pieces: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    share: float = option(0.75, "of each tensor's weights, the share that is tuned: those of the smallest magnitude")

    def __post_init__(self) -> None:
        super(Sparse, self).__post_init__()
        if not 0 < self.share <= 1:
            raise InputError(f"adapter.share is {self.share!r}; expected a number above 0, and 1 at most")

    def masks(self, tuned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """True up to the magnitude that the share of a tensor's weights does not exceed, ties included."""
        return {name: _smallest(tensor.detach(), self.share) for name, tensor in tuned.items()}


def _smallest(tensor: Tensor, share: float) -> Tensor:
    sizes = tensor.float().abs()
    return sizes <= torch.kthvalue(sizes.view(-1), max(round(share * sizes.numel()), 1)).values

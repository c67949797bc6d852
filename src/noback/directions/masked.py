"""Tensors of which only some weights are perturbed and moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from noback.directions.backend import Backend, Part, Products
from noback.directions.passing import Passing
from noback.values import Move


class Masked(Passing):
    """Another backend's points and moves, where a mask says so; elsewhere the weights stand as they are."""

    def __init__(
        self, make: Callable[[Mapping[str, Part]], Backend], parts: Mapping[str, Part], masks: Mapping[str, Tensor]
    ) -> None:
        """`make`: the backend of some parts; `masks`: of each tensor, which weights are tuned, of its shape."""
        super().__init__(make(parts))
        self._parts, self._masks = parts, masks
        # An update goes tensor by tensor, so that the weights that stay are held aside for one tensor at a time.
        self._one_by_one = {name: make({name: part}) for name, part in parts.items()}

    def perturb(self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None) -> Tensor:
        """The tensor (or its chosen rows) at each point, or at one of them: [points, *shape]."""
        return self._chosen(name, super().perturb(name, points, rows, only), rows)

    def perturb_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """Tensors at each point: [points, *shape]."""
        return {name: self._chosen(name, found) for name, found in super().perturb_together(names, points).items()}

    def look_up(self, name: str, points: Sequence[Move], ids: Tensor, only: int | None = None) -> Tensor:
        """Rows `ids` of the tensor at each point: [*ids, *row]."""
        return self._chosen(name, super().look_up(name, points, ids, only), ids)

    def products(
        self, _name: str, _points: Sequence[Move], _rows: Tensor | None = None, _only: int | None = None
    ) -> Products | None:
        """None: with zeros in it a thin product is none."""
        return None

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to the chosen weights of every tensor in place."""
        for name, part in self._parts.items():
            stays, weights = ~self._masks[name].view(-1), part.matrix.view(-1)
            kept = weights[stays]
            self._one_by_one[name].advance(moves, coefficients)
            weights[stays] = kept

    def _chosen(self, name: str, found: Tensor, rows: Tensor | None = None) -> Tensor:
        tensor, mask = self._parts[name].tensor.detach(), self._masks[name]
        if rows is not None:
            tensor, mask = tensor[rows], mask[rows]
        return torch.where(mask, found, tensor)

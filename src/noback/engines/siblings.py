"""Siblings: linears that take one input in a row, such as queries, keys and values, and can be one product."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Siblings:
    """Which linears were seen to take the same input, one after the other."""

    def __init__(self) -> None:
        self._rows: dict[nn.Linear, list[nn.Linear]] = {}
        self._often: set[nn.Linear] = set()  # those that were given more than one input
        self._input: Tensor | None = None
        self._row: list[nn.Linear] = []

    def forget(self) -> None:
        """Begin anew."""
        self._rows.clear()
        self._often.clear()
        self.rest()

    def rest(self) -> None:
        """Let the last input go."""
        self._input, self._row = None, []

    def see(self, module: nn.Linear, x: Tensor) -> None:
        """A linear was given x."""
        if x is not self._input:
            self._input, self._row = x, []
        if module in self._rows:
            self._often.add(module)
        self._row.append(module)
        self._rows[module] = self._row

    def of(self, module: nn.Linear) -> Sequence[nn.Linear]:
        """A linear and its siblings, in the order of their use; nothing where it has none."""
        row = self._rows.get(module, [])
        alike = len({(one.weight.shape[1:], one.weight.dtype, one.bias is None) for one in row}) == 1
        apart = len({id(one.weight) for one in row}) == len(row) and self._often.isdisjoint(row)
        return row if alike and apart and len(row) > 1 else []

    def sets(self, most: int) -> Collection[tuple[nn.Linear, ...]]:
        """All sets whose weights take at most so many bytes."""
        found = dict.fromkeys(tuple(self.of(module)) for module in self._rows)
        return [some for some in found if some and sum(module.weight.nbytes for module in some) <= most]


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """Tensors [points, rows, ...] that lie one after the other at each point as one; none where they do not."""
    with torch._C.DisableTorchFunction():  # only a look: no value that waits must be made for it
        for one, other in pairwise(parts):
            follows = other.data_ptr() == one.data_ptr() + one[0].nbytes and other.stride() == one.stride()
            if not follows or other.untyped_storage().data_ptr() != one.untyped_storage().data_ptr():
                return None
        first, rows = parts[0], sum(part.shape[1] for part in parts)
        return first.as_strided((len(first), rows, *first.shape[2:]), first.stride())

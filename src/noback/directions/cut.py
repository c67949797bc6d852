"""A cut: which part of a tuned tensor a process holds, and where that part lies in the noise of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from noback.directions.philox import Place


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges of one dimension of a whole tensor.

    Several ranges, such as one rank's heads of queries, keys and values that lie in one tensor, are held one after the
    other: along the first dimension, or, where columns are cut, as [ranges, rows, columns of one]. Each is then a
    matrix whose memory has no gaps, as every sweep over the noise takes it.
    """

    shape: tuple[int, ...]  # of the whole tensor
    dimension: int  # 0: rows, or elements of a vector; 1: columns
    ranges: tuple[tuple[int, int], ...]  # first and end, all of one length

    @property
    def held(self) -> tuple[int, ...]:
        """The shape of what is held."""
        length = self.ranges[0][1] - self.ranges[0][0]
        if self.dimension == 0:
            return (length * len(self.ranges), *self.shape[1:])
        one = (self.shape[0], length, *self.shape[2:])
        return one if len(self.ranges) == 1 else (len(self.ranges), *one)

    def part(self, whole: Tensor) -> Tensor:
        """What is held of a whole tensor: a copy."""
        parts = [whole.narrow(self.dimension, first, end - first) for first, end in self.ranges]
        stacked = self.dimension == 1 and len(parts) > 1
        return (torch.stack(parts) if stacked else torch.cat(parts)).contiguous().clone()

    def pieces(self, held: Tensor, tensor: int) -> list[tuple[Tensor, Place]]:
        """Each range of what is held, sharing its memory, and where it lies in the noise of tensor id `tensor`."""
        width = prod(self.shape[1:])
        stacked = self.dimension == 1 and len(self.ranges) > 1
        views = list(held) if stacked else list(held.chunk(len(self.ranges)))
        firsts = [first for first, _ in self.ranges]
        if self.dimension == 0:
            return [(view, Place(tensor, width, first_row=first)) for view, first in zip(views, firsts, strict=True)]
        each = width // self.shape[1]
        return [
            (view, Place(tensor, width, first_column=first * each)) for view, first in zip(views, firsts, strict=True)
        ]


def joined(cuts: Sequence[Cut], held: Sequence[Tensor]) -> Tensor:
    """The whole tensor, from what every process holds of it."""
    whole = held[0].new_empty(cuts[0].shape)
    for cut, tensor in zip(cuts, held, strict=True):
        for (first, end), (view, _) in zip(cut.ranges, cut.pieces(tensor, 0), strict=True):
            whole.narrow(cut.dimension, first, end - first).copy_(view)
    return whole


@dataclass(frozen=True, slots=True)
class Division:
    """Which part of each tensor each of several ranks holds; a tensor that has no cuts is whole on all of them."""

    cuts: Mapping[str, Sequence[Cut]]  # of every rank, in their order
    rank: int
    gathered: Callable[[Tensor], Sequence[Tensor]]  # what every rank has of one shape; all of them ask together

    def own(self, name: str) -> Cut | None:
        """The cut of this rank."""
        return self.cuts[name][self.rank] if name in self.cuts else None

    def shape(self, name: str, held: Tensor) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        return self.cuts[name][0].shape if name in self.cuts else tuple(held.shape)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What this rank holds of a whole tensor."""
        cut = self.own(name)
        return whole if cut is None else cut.part(whole)

    def whole(self, name: str, held: Tensor) -> Tensor:
        """The whole tensor, from what every rank holds of it."""
        return joined(self.cuts[name], self.gathered(held)) if name in self.cuts else held


ALONE = Division({}, 0, lambda part: [part])  # every tensor is whole here


class Wholes(Mapping[str, Tensor]):
    """Whole tensors by name, each put together when it is asked for; all ranks ask for the same in the same order."""

    def __init__(self, held: Mapping[str, Tensor], division: Division) -> None:
        self._held, self._division = held, division

    def __getitem__(self, name: str) -> Tensor:
        return self._division.whole(name, self._held[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

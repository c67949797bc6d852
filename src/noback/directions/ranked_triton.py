"""Low-rank noise on a GPU with Triton: the sweeps over matrices, with the bits of `philox`.

A matrix's signs are a bit a row and a bit a column of each product, so all of them are drawn at once, in one launch,
and kept packed: those of a step's points where captured forwards read them, those of moves for the time of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from noback.directions.backend import Part, Products
from noback.directions.families import Noise
from noback.directions.packing import Order, Packed
from noback.directions.philox import COLUMN_STREAM, ROW_STREAM
from noback.directions.plans_triton import is_wide, where
from noback.directions.ranked_kernels_triton import (
    advance_ranked_elements,
    advance_ranked_tiles,
    draw_signs,
    perturb_ranked,
    spread_signs,
)
from noback.values import Move

_ROWS = 8  # of a tile
_GROUPS = 64  # of columns, of 16 bytes each: a group a thread of two warps
_CALLS = 128  # of Philox that a program draws
_SPREAD = 1024  # signs that a program spreads
_ELEMENTS = 256  # that a program of the element-wise kernel takes
_SCRATCH = 2**26  # bytes of signs that a sweep draws at a time


class Drawn(NamedTuple):
    """Some points on the device, with the signs of their directions."""

    packed: Packed  # these points, and maybe others
    signs: Tensor
    first: int
    terms: Sequence[int]  # of each of them


class Ranked:
    """The matrices of one GPU whose directions are sums of thin products."""

    def __init__(self, parts: Mapping[str, Part], noise: Noise, device: torch.device) -> None:
        self._parts, self._rank, self._device = parts, noise.rank, device
        self._kept = noise.period is not None
        calls = [_calls(part) for part in parts.values()]
        self._ends = np.cumsum([0, *map(len, calls)])  # in calls of Philox, of a product's signs
        self._calls = torch.from_numpy(np.concatenate(calls)).to(device)
        self._places = {
            name: _place(part, int(first) * 4)
            for (name, part), first in zip(parts.items(), self._ends[:-1], strict=True)
        }
        self._facts = torch.tensor([_facts(part, self._places[name].offset) for name, part in parts.items()]).to(device)
        self._sweeps = [sweep for dtype in (torch.float32, torch.bfloat16) for sweep in self._planned(dtype)]
        self._drawn: dict[Order, tuple[Sequence[Move], Tensor]] = {}  # what stands in the memory of each order

    def bring(self, order: Order, points: Sequence[Move], packed: Packed) -> Tensor:
        """The points' signs, in memory that stays the same for points of one order."""
        known, signs = self._drawn.get(order, ((), None))
        if signs is None or known != tuple(points):
            if signs is None:
                with torch.inference_mode(mode=False):  # it is written within and outside that mode
                    signs = torch.empty(packed.terms * self._rank * self._words, dtype=torch.int32, device=self._device)
            self._draw(signs, packed, 0, len(self._parts))
            self._drawn[order] = tuple(points), signs
        return signs

    def perturb(self, name: str, points: Drawn, rows: Tensor | None) -> Tensor:
        """The matrix, or rows of it, at each point, as many for each: [rows in all, columns]."""
        weight, packed, count = self._parts[name].matrix, points.packed, len(points.terms)
        in_all, width = len(weight) * count if rows is None else len(rows), weight.shape[1]
        out = weight.new_empty((in_all, width))
        block = min(max(triton.next_power_of_2(width), 16), 1024)
        perturb_ranked[(in_all, triton.cdiv(width, block))](
            weight, out, packed.words, points.signs, packed.words if rows is None else rows, points.first,
            in_all // count, packed.count, packed.terms, self._rank, width, self._words, *self._places[name].numbers,
            CHOSEN=rows is not None, BLOCK=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def products(self, name: str, points: Drawn, rows: Tensor | None) -> Products:
        """What the points add to the matrix, or to rows of it."""
        packed, (height, width) = points.packed, self._parts[name].matrix.shape
        height, slots = height if rows is None else len(rows), max(points.terms) * self._rank
        of_rows, of_columns = (
            torch.empty((len(points.terms), slots, size), dtype=torch.float32, device=self._device)
            for size in (height, width)
        )
        blocks = triton.cdiv(height, _SPREAD) + triton.cdiv(width, _SPREAD)
        spread_signs[(len(points.terms) * slots, blocks)](
            of_rows, of_columns, packed.words, points.signs, packed.words if rows is None else rows, points.first,
            slots, packed.count, packed.terms, self._rank, height, width, self._words, *self._places[name].numbers,
            CHOSEN=rows is not None, BLOCK=_SPREAD, num_warps=4,
        )  # fmt: skip
        return Products(of_rows, of_columns)

    def advance(self, packed: Packed, *, decays: bool) -> None:
        """Apply the moves to every matrix in place; as many of them at a time as have their signs in the scratch."""
        for first, last in self._at_once(packed.terms * self._rank):
            begin, total = int(self._ends[first]) * 4, int(self._ends[last] - self._ends[first]) * 4
            signs = torch.empty(packed.terms * self._rank * total, dtype=torch.int32, device=self._device)
            self._draw(signs, packed, first, last)
            for sweep in self._sweeps:
                chunks = sweep.of(first, last)
                single = {"SINGLE": packed.count == 1} if sweep.kernel is advance_ranked_tiles else {}
                if len(chunks):
                    sweep.kernel[(len(chunks),)](
                        chunks, self._facts, packed.words, signs, packed.count, packed.terms, self._rank, total, begin,
                        DECAYS=decays, **single, **sweep.options, enable_fp_fusion=False,
                    )  # fmt: skip

    @property
    def _words(self) -> int:
        """Of all matrices in one product."""
        return int(self._ends[-1]) * 4

    def _draw(self, signs: Tensor, packed: Packed, first: int, last: int) -> None:
        """Draw the signs of some matrices in all products of the moves."""
        if packed.terms == 0:
            return
        calls = self._calls[self._ends[first] : self._ends[last]]
        draw_signs[(packed.terms * self._rank, triton.cdiv(len(calls), _CALLS))](
            calls, packed.words, signs, packed.terms, self._rank, len(calls), KEPT=self._kept, BLOCK=_CALLS,
            num_warps=4,
        )  # fmt: skip

    def _at_once(self, products: int) -> list[tuple[int, int]]:
        """The matrices, cut so that each cut's signs fit; at least one at a time."""
        cuts, first = [], 0
        for last in range(1, len(self._parts) + 1):
            beyond = last < len(self._parts) and (self._ends[last + 1] - self._ends[first]) * 16 * products > _SCRATCH
            if last == len(self._parts) or beyond:
                cuts.append((first, last))
                first = last
        return cuts

    def _planned(self, dtype: torch.dtype) -> list[_Sweep]:
        """For the matrices of a type: whole tiles, tiles that reach over an edge, and what goes element by element."""
        whole, edges, elements = [], [], []
        for index, part in enumerate(self._parts.values()):
            if part.tensor.dtype != dtype:
                continue
            if not _is_tiled(part):
                first = np.arange(0, part.tensor.numel(), _ELEMENTS)
                elements.append(np.stack([np.full_like(first, index), first, np.zeros_like(first)], axis=1))
                continue
            tiles, inside = _tiles(index, part)
            whole.append(tiles[inside])
            edges.append(tiles[~inside])
        half = {"HALF": dtype == torch.bfloat16}
        tiled = {**half, "GROUPS": _GROUPS, "num_warps": _GROUPS // 32}
        kinds = (
            (advance_ranked_tiles, whole, {**tiled, "MASKED": False}),
            (advance_ranked_tiles, edges, {**tiled, "MASKED": True}),
            (advance_ranked_elements, elements, {**half, "BLOCK": _ELEMENTS, "num_warps": 4}),
        )
        return [
            _Sweep(kernel, torch.from_numpy(found).to(self._device), found[:, 0].copy(), options)
            for kernel, chunks, options in kinds
            if chunks and len(found := np.concatenate(chunks))
        ]


@dataclass(frozen=True, slots=True)
class _Sweep:
    """What one launch moves: a chunk a program, and whose each chunk is."""

    kernel: Any
    chunks: Tensor  # (matrix, band or first element, first column), ascending by matrix
    of_matrix: NDArray[Any]
    options: dict[str, Any]

    def of(self, first: int, last: int) -> Tensor:
        """The chunks of some matrices."""
        begin, end = np.searchsorted(self.of_matrix, [first, last])
        return self.chunks[begin:end]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matrix's signs lie among a product's words, and where the matrix lies in its tensor."""

    offset: int
    row_words: int
    first_row: int
    first_column: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.offset, self.row_words, self.first_row, self.first_column


def _bands(first: int, count: int) -> NDArray[np.int64]:
    """The bands of 128 in which some rows or columns lie."""
    return np.arange(first // 128, (first + count - 1) // 128 + 1)


def _calls(part: Part) -> NDArray[np.int32]:
    """The calls of Philox for a matrix's rows, then those for its columns: (tensor, stream, band) each."""
    (height, width), (_, tensor, first_row, first_column) = part.matrix.shape, where(part.place)
    of_both = (ROW_STREAM, _bands(first_row, height)), (COLUMN_STREAM, _bands(first_column, width))
    calls = [np.stack([np.full_like(some, tensor), np.full_like(some, stream), some], 1) for stream, some in of_both]
    return np.concatenate(calls).astype(np.int32)


def _place(part: Part, offset: int) -> _Place:
    row_words = 4 * len(_bands(part.place.first_row, len(part.tensor)))
    return _Place(offset, row_words, part.place.first_row, part.place.first_column)


def _facts(part: Part, offset: int) -> list[int]:
    return [part.tensor.data_ptr(), *part.matrix.shape, *where(part.place), int(part.decayed), offset]


def _is_tiled(part: Part) -> bool:
    """Whether 16 bytes of columns lie side by side in memory and have their signs in one word."""
    return is_wide(part.matrix) and part.place.first_column % 8 == 0


def _tiles(index: int, part: Part) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """A matrix's tiles as (index, band of eight rows, first column), and which of them reach over no edge."""
    (height, width), columns = part.matrix.shape, 16 // part.tensor.element_size() * _GROUPS
    top, bottom = part.place.first_row, part.place.first_row + height
    bands, begins = np.arange(top // _ROWS, (bottom - 1) // _ROWS + 1), np.arange(0, width, columns)
    band, column = (grid.ravel() for grid in np.meshgrid(bands, begins, indexing="ij"))
    inside = (band * _ROWS >= top) & (band * _ROWS + _ROWS <= bottom) & (column + columns <= width)
    return np.stack([np.full_like(band, index), band, column], axis=1).astype(np.int32), inside

"""The noise on a GPU with Triton: the same sweeps as `philox`, the same bits.

A wide matrix is swept in tiles of 16 rows: a tile's Philox words are made once and serve all 16 rows and all points
that share a seed. Vectors, narrow matrices and chosen rows go element by element. Matrices whose directions are of low
rank have sweeps of their own (`ranked_triton`). Seeds and coefficients are values on the device, so a captured graph
can be replayed with others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from noback.directions.backend import Part, Products
from noback.directions.families import Noise
from noback.directions.kernels_triton import (
    advance_elements,
    advance_tiles,
    perturb_group,
    perturb_rows,
    perturb_small,
    perturb_tiles,
)
from noback.directions.packing import Order, Packed, order_of, pack
from noback.directions.philox import Place, is_ranked
from noback.directions.plans_triton import is_wide, where
from noback.directions.rademacher import Rademacher
from noback.directions.ranked_triton import Drawn, Ranked
from noback.values import Move

_ROWS = 16  # of a tile
_ELEMENTS = 256  # that a program of the element-wise kernels takes
_MOVES_A_PASS = 512


def _tile(vector: int, warps: int, registers: int | None = None) -> dict[str, Any]:
    """What a kernel is compiled for that sweeps 16 rows by `vector` columns a thread. Any gives the same bits.

    `registers`: a thread's, at most; fewer let more programs run side by side.
    """
    return {"VECTOR": vector, "BLOCK": vector * 32 * warps, "num_warps": warps, "maxnreg": registers}


# The fastest on an H200.
_ADVANCED = {torch.float32: _tile(2, 2), torch.bfloat16: _tile(4, 2, registers=128)}
_PERTURBED = _tile(2, 2)


class TritonBackend:
    """Sweeps over tensors of one GPU; `advance` takes all of them in a few launches."""

    def __init__(self, parts: Mapping[str, Part], noise: Noise) -> None:
        self._parts, self._noise = parts, noise
        self._device = next(iter(parts.values())).tensor.device
        self._index = self._device.index if self._device.type == "cuda" else -1  # -1: Triton's interpreter on a CPU
        self._values = torch.from_numpy(noise.values.astype(np.float64)).to(self._device)
        # On the device too: by a number of the host a GPU multiplies the inverse, which rounds otherwise.
        self._root = torch.tensor(math.sqrt(noise.rank), dtype=torch.float64, device=self._device)
        ranked = {name: part for name, part in parts.items() if is_ranked(noise, part.place)}
        self._ranked = Ranked(ranked, noise, self._device) if ranked else None
        single = {name: part for name, part in parts.items() if name not in ranked}
        self._plans = [plan for dtype, tile in _ADVANCED.items() for plan in _plans(single, tile, dtype)]
        small = [plan for plan in self._plans if plan.kernel is advance_elements]
        self.small: Sequence[str] = tuple(name for plan in small for name in plan.shapes)
        self.alone: Collection[str] = frozenset(
            name for name, part in parts.items() if name in ranked or not _is_even(part)
        )
        self._groups = {tuple(self.small): small}
        self._placed: dict[Order, tuple[Sequence[Move], Packed]] = {}  # what stands in the memory of each order
        self._graphs: dict[tuple[int, bool], Any] = {}  # captured sweeps of one move, by its terms and decay

    def order(self, points: Sequence[Move]) -> Order:
        """Bring the points to where a captured forward reads them; returns what of them it was captured for."""
        self._drawn(points, None)
        return order_of(points)

    def prepare(self, names: Sequence[str]) -> None:
        """Make the plan of a group: while a forward is captured nothing can be brought to the device."""
        if tuple(names) not in self._groups:
            group = {name: self._parts[name] for name in names}
            self._groups[tuple(names)] = _plans(group, _PERTURBED, group[names[0]].tensor.dtype)

    def perturb(self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None) -> Tensor:
        """The tensor (or its chosen rows) at each point, or at one of them: [points, *shape]."""
        part, count = self._parts[name], len(points) if only is None else 1
        if is_ranked(self._noise, part.place):
            chosen = None if rows is None else rows.repeat(count)
            return self._perturbed_ranked(name, points, chosen, only).view(count, -1, *part.tensor.shape[1:])
        if rows is None and not is_wide(part.matrix):
            rows = torch.arange(len(part.tensor), device=self._device) + part.place.first_row
        if rows is not None:
            return self.look_up(name, points, rows.repeat(count, 1), only)
        packed, weight, place = self._brought(points), part.matrix, part.place
        out = part.tensor.new_empty((count, *part.tensor.shape))
        options = packed.options if only is None else {"SHARED": 0, "MIRRORED": False, "ALONE": False}
        bands = (place.first_row + len(weight) - 1) // _ROWS - place.first_row // _ROWS + 1
        with torch.cuda.device(self._index):
            perturb_tiles[(triton.cdiv(weight.shape[1], _PERTURBED["BLOCK"]), bands)](
                weight, out, packed.words, only or 0, count, packed.count, packed.terms, *weight.shape, *where(place),
                **options, **_PERTURBED, BITS=self._noise.bits, MASKED=name in self.alone, enable_fp_fusion=False,
            )  # fmt: skip
        return out

    def perturb_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """The small tensors or a prepared group at each point, in one launch a type: [points, *shape]."""
        packed, found = self._brought(points), dict[str, Tensor]()
        with torch.cuda.device(self._index):
            for plan in self._groups[tuple(names)]:
                found |= plan.perturbed(packed, self._noise.bits)
        return {name: value.view(-1, *self._parts[name].tensor.shape) for name, value in found.items()}

    def look_up(self, name: str, points: Sequence[Move], ids: Tensor, only: int | None = None) -> Tensor:
        """Rows `ids` of the tensor, the ids of each point one after the other: [*ids, *row]."""
        part, packed, count = self._parts[name], self._brought(points), len(points) if only is None else 1
        if is_ranked(self._noise, part.place):
            found = self._perturbed_ranked(name, points, ids.reshape(-1), only)
            return found.view(*ids.shape, *part.tensor.shape[1:])
        out = part.tensor.new_empty((*ids.shape, *part.tensor.shape[1:]))
        width = part.matrix.shape[1]
        block = min(max(triton.next_power_of_2(width), 16), 1024)
        with torch.cuda.device(self._index):
            perturb_rows[(ids.numel(), triton.cdiv(width, block))](
                part.matrix, out, packed.words, ids.reshape(-1), only or 0, ids.numel() // count, packed.terms, width,
                *where(part.place), BITS=self._noise.bits, BLOCK=block, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        return out

    def products(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None
    ) -> Products | None:
        """What the points add to the tensor, or to its chosen rows; None where each element has its own noise."""
        if not is_ranked(self._noise, self._parts[name].place):
            return None
        drawn = self._drawn(points, only)
        assert self._ranked is not None
        with torch.cuda.device(self._index):
            return self._ranked.products(name, drawn, rows) if any(drawn.terms) else None

    def _perturbed_ranked(self, name: str, points: Sequence[Move], rows: Tensor | None, only: int | None) -> Tensor:
        """A matrix of low-rank noise, or chosen rows, those of each point one after the other: [rows, columns]."""
        drawn = self._drawn(points, only)
        assert self._ranked is not None
        with torch.cuda.device(self._index):
            return self._ranked.perturb(name, drawn, rows)

    def _drawn(self, points: Sequence[Move], only: int | None) -> Drawn:
        """The points, or one of them, with their signs where captured forwards read them."""
        packed, signs = self._brought(points), self._values
        if self._ranked is not None:
            with torch.cuda.device(self._index):
                signs = self._ranked.bring(order_of(points), points, packed)
        some = points if only is None else [points[only]]
        return Drawn(packed, signs, only or 0, [len(point.terms) for point in some])

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to every tensor in place; `coefficients` are folded into their tables on the GPU."""
        for begin in range(0, len(moves), _MOVES_A_PASS):
            some = moves[begin : begin + _MOVES_A_PASS]
            packed, decays = self._brought(some), any(move.decay != 1.0 for move in some)
            if coefficients is not None:
                self._placed[order_of(some)] = ((), packed)  # what stands there from now on is not known here
                tables = (self._values * coefficients[:, None]).float()
                packed.words[: tables.numel()].copy_(tables.view(torch.int32).view(-1))
                if self._ranked is not None and packed.terms:
                    sizes = (coefficients / self._root).float().repeat_interleave(self._noise.rank)
                    packed.words[-len(sizes) :].copy_(sizes.view(torch.int32))
            with torch.cuda.device(self._index):
                self._sweep(packed, decays=decays)

    def _brought(self, moves: Sequence[Move]) -> Packed:
        """The moves on the device, in memory that stays the same for moves of one order."""
        order = order_of(moves)
        known, packed = self._placed.get(order, (None, None))
        if packed is None or known != tuple(moves):
            words = torch.from_numpy(pack(self._noise, moves))
            if packed is None:
                terms = sum(len(move.terms) for move in moves)
                with torch.inference_mode(mode=False):  # it is written within and outside that mode
                    memory = torch.empty_like(words, device=self._device)
                    packed = Packed(memory, len(moves), terms, order[0], bool(order[1]))
            packed.words.copy_(words, non_blocking=True)
            self._placed[order] = (tuple(moves), packed)
        return packed

    def _sweep(self, packed: Packed, *, decays: bool) -> None:
        """Advance plainly; one move the second time captured and from then on replayed, which is one launch."""
        key = (packed.terms, decays)
        if packed.count > 1 or key not in self._graphs:
            self._launch(packed, decays=decays)
            if packed.count == 1:
                self._graphs[key] = None
            return
        if self._graphs[key] is None:
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._launch(packed, decays=decays)
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _launch(self, packed: Packed, *, decays: bool) -> None:
        if self._ranked is not None:
            self._ranked.advance(packed, decays=decays)
        single = packed.count == 1 and packed.terms == 1
        for plan in self._plans:
            alone = {"SINGLE": single} if plan.kernel is advance_tiles else {}
            plan.kernel[(len(plan.chunks),)](
                plan.chunks, plan.facts, packed.words, packed.count, packed.terms, DECAYS=decays,
                BITS=self._noise.bits, **alone, **plan.options, enable_fp_fusion=False,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """Tensors of one type that one launch sweeps: what each program does, and a row of facts a tensor."""

    kernel: Any
    chunks: Tensor  # (tensor, band or first element, first column) a program
    facts: Tensor
    options: dict[str, Any]
    shapes: dict[str, tuple[int, int, int]]  # rows, columns and beginning of each tensor among the perturbed

    def perturbed(self, points: Packed, bits: int) -> dict[str, Tensor]:
        """All of them at each point, in one launch: [points, rows, columns]."""
        rows, columns, begin = list(self.shapes.values())[-1]
        total = _padded(begin + rows * columns)
        dtype = torch.bfloat16 if self.options["HALF"] else torch.float32
        out = torch.empty((points.count, total), dtype=dtype, device=self.chunks.device)
        kernel, order = (perturb_small, {}) if self.kernel is advance_elements else (perturb_group, points.options)
        kernel[(len(self.chunks),)](
            self.chunks, self.facts, out, points.words, points.count, points.terms, total, **order, BITS=bits,
            **self.options, enable_fp_fusion=False,
        )  # fmt: skip
        return {
            name: out[:, begin : begin + rows * columns].view(points.count, rows, columns)
            for name, (rows, columns, begin) in self.shapes.items()
        }


def _plans(parts: Mapping[str, Part], tile: Mapping[str, Any], dtype: torch.dtype) -> list[_Plan]:
    """For the tensors of a type: whole tiles, tiles that reach over an edge, and what goes element by element."""
    whole, edges, elements = [], [], []
    tiled: dict[str, tuple[int, int, int]] = {}
    small: dict[str, tuple[int, int, int]] = {}
    facts: list[list[int]] = []
    chosen = {name: part for name, part in parts.items() if part.tensor.dtype == dtype}
    for index, (name, part) in enumerate(chosen.items()):
        (height, width), wide = part.matrix.shape, is_wide(part.matrix)
        shapes = tiled if wide else small
        rows, columns, begin = list(shapes.values())[-1] if shapes else (0, 0, 0)
        begin = _padded(begin + rows * columns)  # where 16 bytes begin, as a product's bias should
        shapes[name] = (height, width, begin)
        facts.append([part.tensor.data_ptr(), height, width, *where(part.place), int(part.decayed), begin])
        if not wide:
            first = np.arange(0, part.tensor.numel(), _ELEMENTS)
            elements.append(np.stack([np.full_like(first, index), first, np.zeros_like(first)], axis=1))
            continue
        top, bottom = part.place.first_row, part.place.first_row + height
        bands, begins = np.arange(top // _ROWS, (bottom - 1) // _ROWS + 1), np.arange(0, width, tile["BLOCK"])
        band, column = (grid.ravel() for grid in np.meshgrid(bands, begins, indexing="ij"))
        inside = (band * _ROWS >= top) & (band * _ROWS + _ROWS <= bottom) & (column + tile["BLOCK"] <= width)
        programs = np.stack([np.full_like(band, index), band, column], axis=1)
        whole.append(programs[inside])
        edges.append(programs[~inside])
    half = {"HALF": dtype == torch.bfloat16}
    kinds = (
        (advance_tiles, whole, {**half, **tile, "MASKED": False}, tiled),
        (advance_tiles, edges, {**half, **tile, "MASKED": True}, tiled),
        (advance_elements, elements, {**half, "BLOCK": _ELEMENTS, "num_warps": 4}, small),
    )
    if not chosen:
        return []
    device = next(iter(chosen.values())).tensor.device
    table = torch.tensor(facts, device=device)
    return [
        _Plan(kernel, torch.from_numpy(np.concatenate(chunks)).to(device), table, options, shapes)
        for kernel, chunks, options, shapes in kinds
        if sum(map(len, chunks))
    ]


def _padded(elements: int) -> int:
    return -(-elements // 16) * 16


def _is_even(part: Part) -> bool:
    """Whether the matrix consists of whole tiles only."""
    rows, columns = part.matrix.shape
    whole = part.place.first_row % _ROWS == 0 and rows % _ROWS == 0 and columns % _PERTURBED["BLOCK"] == 0
    return whole and is_wide(part.matrix)


def works() -> str | None:
    """None where a kernel compiles and runs; else why not."""
    try:
        probe = Part(torch.zeros(1, 64, device="cuda"), Place(0, 64), decayed=True)
        TritonBackend({"probe": probe}, Rademacher()).advance([Move((), 0.5)])
    except Exception as error:  # noqa: BLE001 (a compiler or driver that is missing shows itself in many ways)
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None

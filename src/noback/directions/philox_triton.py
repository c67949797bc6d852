"""The noise on a GPU with Triton: the same sweeps as `philox`, the same bits.

A wide matrix is swept in tiles of 16 rows: a tile's Philox words are made once and serve all 16 rows (of either
family) and all points that share a seed. Vectors, narrow matrices and chosen rows go element by element. Seeds and
coefficients are values on the device, so a captured graph can be replayed with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from noback.directions.families import Family
from noback.directions.philox import Place, fold
from noback.values import Move

_ROWS = 16  # of a tile
_ELEMENTS = 1024  # that a program of the element-wise kernels takes
_MOVES_A_PASS = 512
_NARROW = 64  # a matrix of fewer columns goes element by element


@dataclass(frozen=True, slots=True)
class Tile:
    """Sixteen rows of a matrix by `vector` columns a thread: what a program sweeps."""

    vector: int
    warps: int

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vector * 32 * self.warps


ADVANCED = PERTURBED = {torch.float32: Tile(2, 2), torch.bfloat16: Tile(4, 2)}


def packed(family: Family, moves: Sequence[Move]) -> NDArray[np.int32]:
    """Moves as 32-bit words: folded tables, seeds, where each move's terms begin, rounding seeds and decays."""
    terms = [term for move in moves for term in move.terms]
    tables = [fold(family, term.coefficient) for term in terms]
    seeds = np.array([term.seed for term in terms], dtype=np.uint64)
    starts = np.cumsum([0] + [len(move.terms) for move in moves])
    rounding = np.array([move.rounding_seed for move in moves], dtype=np.uint64)
    decays = np.array([move.decay for move in moves], dtype=np.float32)
    parts = [*tables, seeds, starts.astype(np.int32), rounding, decays]
    return np.concatenate([np.ascontiguousarray(part).view(np.int32) for part in parts])


def shared(moves: Sequence[Move]) -> int:
    """How many points in a row share their only term's seed, such as a direction's two sides; 0: no such order."""
    if not moves or any(len(move.terms) != 1 for move in moves):
        return 0
    seeds = [move.terms[0].seed for move in moves]
    for size in (4, 3, 2):
        groups = [seeds[begin : begin + size] for begin in range(0, len(seeds), size)]
        if len(seeds) % size == 0 and all(len(set(group)) == 1 for group in groups):
            return size
    return 1


@dataclass(frozen=True, slots=True)
class Points:
    """Points as the device sees them: their words, and what of their order a kernel is compiled for."""

    words: Tensor
    count: int
    terms: int
    shared: int


class Sweeps:
    """The two sweeps over some tensors of one GPU; `advance` takes all of them in a few launches."""

    def __init__(self, parts: Sequence[tuple[Tensor, Place, bool]], family: Family) -> None:
        """`parts`: each tensor as a matrix, its place in the noise, and whether weight decay applies to it."""
        self._device, self._family = parts[0][0].device, family
        self._slots: dict[tuple[int, ...], tuple[tuple[Move, ...], Points]] = {}
        self._plans = [plan for dtype in ADVANCED for plan in _plans(parts, dtype)]

    def placed(self, points: Sequence[Move]) -> Points:
        """The points on the device, in a place that stays the same for points of one order."""
        order = (shared(points), *(len(point.terms) for point in points))
        known, found = self._slots.get(order, (None, None))
        if found is None or known != tuple(points):
            words = torch.from_numpy(packed(self._family, points))
            if found is None:
                terms = sum(len(point.terms) for point in points)
                with torch.inference_mode(mode=False):  # it is written within and outside that mode
                    found = Points(torch.empty_like(words, device=self._device), len(points), terms, order[0])
            found.words.copy_(words, non_blocking=True)
            self._slots[order] = (tuple(points), found)
        return found

    def perturb(self, out: Tensor, weight: Tensor, place: Place, points: Points, only: int | None = None) -> None:
        """Write the matrix at each point (or at one of them) to `out` [points, rows, columns]."""
        height, width = weight.shape
        tile = PERTURBED[weight.dtype]
        first, count, side_by_side = (0, points.count, points.shared) if only is None else (only, 1, 0)
        args = (weight, out, points.words, first, count, points.count, points.terms, height, width, *_where(place))
        if _is_wide(weight):
            bands = (place.first_row + height - 1) // _ROWS - place.first_row // _ROWS + 1
            even = place.first_row % _ROWS == 0 and height % _ROWS == 0 and width % tile.columns == 0
            _perturb_tiles[(triton.cdiv(width, tile.columns), bands)](
                *args, SHARED=side_by_side, BITS=self._family.bits, VECTOR=tile.vector, BLOCK=tile.columns,
                MASKED=not even, num_warps=tile.warps, enable_fp_fusion=False,
            )  # fmt: skip
            return
        _perturb_elements[(triton.cdiv(height * width, _ELEMENTS),)](
            *args, weight, height, BITS=self._family.bits, CHOSEN=False, BLOCK=_ELEMENTS,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip

    def look_up(
        self, out: Tensor, weight: Tensor, place: Place, points: Points, rows: Tensor, only: int | None = None
    ) -> None:
        """Write row `rows[i]` of the matrix at its point to `out[i]`; the rows of each point follow one another."""
        height, width = len(rows), weight.shape[1]
        first, count = (0, points.count) if only is None else (only, 1)
        _perturb_elements[(triton.cdiv(height * width, _ELEMENTS),)](
            weight, out, points.words, first, 1, points.count, points.terms, height, width, *_where(place),
            rows, height // count, BITS=self._family.bits, CHOSEN=True, BLOCK=_ELEMENTS, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip

    def small(self, points: Points) -> dict[int, Tensor]:
        """Every vector and narrow matrix at each point, by its place among the parts: [points, rows, columns]."""
        found: dict[int, Tensor] = {}
        for plan in self._plans:
            if plan.kernel is _advance_elements:
                found |= plan.perturbed(points, self._family.bits)
        return found

    def advance(self, moves: Sequence[Move]) -> None:
        """Apply the moves to every tensor in place, in their order."""
        for begin in range(0, len(moves), _MOVES_A_PASS):
            some = moves[begin : begin + _MOVES_A_PASS]
            placed = self.placed(some)
            single = len(some) == 1 and placed.terms == 1
            decays = any(move.decay != 1.0 for move in some)
            for plan in self._plans:
                plan.launch(placed.words, len(some), placed.terms, SINGLE=single, DECAYS=decays, BITS=self._family.bits)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Tensors of one type that one launch advances: what each program does, and a row of facts a tensor."""

    kernel: Any
    chunks: Tensor  # (tensor, band or first element, first column) a program
    facts: Tensor
    options: dict[str, Any]
    shapes: dict[int, tuple[int, int, int]]  # rows, columns and beginning of each small tensor, by its place

    def launch(self, *args: Any, **options: Any) -> None:
        """Sweep them in place."""
        self.kernel[(len(self.chunks),)](
            self.chunks, self.facts, *args, **options, **self.options, enable_fp_fusion=False
        )

    def perturbed(self, points: Points, bits: int) -> dict[int, Tensor]:
        """The small ones at each point, in one launch."""
        rows, columns, begin = list(self.shapes.values())[-1]
        total = -(-(begin + rows * columns) // 16) * 16
        half = self.options["HALF"]
        out = torch.empty(
            (points.count, total), dtype=torch.bfloat16 if half else torch.float32, device=self.chunks.device
        )
        _perturb_small[(len(self.chunks),)](
            self.chunks, self.facts, out, points.words, points.count, points.terms, total, HALF=half,
            BITS=bits, BLOCK=_ELEMENTS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return {
            part: out[:, begin : begin + rows * columns].view(points.count, rows, columns)
            for part, (rows, columns, begin) in self.shapes.items()
        }


def _plans(everything: Sequence[tuple[Tensor, Place, bool]], dtype: torch.dtype) -> list[_Plan]:
    """Whole tiles, tiles that reach over an edge, and what goes element by element."""
    parts = [(index, *part) for index, part in enumerate(everything) if part[0].dtype == dtype]
    if not parts:
        return []
    device, tile = parts[0][1].device, ADVANCED[dtype]
    whole, edges, elements, facts = [], [], [], []
    shapes: dict[int, tuple[int, int, int]] = {}
    begin = 0
    for index, (part, tensor, place, decayed) in enumerate(parts):
        height, width = tensor.shape
        facts.append([tensor.data_ptr(), height, width, *_where(place), int(decayed), begin])
        if not _is_wide(tensor):
            first = np.arange(0, tensor.numel(), _ELEMENTS)
            elements.append(np.stack([np.full_like(first, index), first, np.zeros_like(first)], axis=1))
            shapes[part] = (height, width, begin)
            begin += -(-height * width // 16) * 16  # each begins where 16 bytes begin, as a product's bias should
            continue
        bands = np.arange(place.first_row // _ROWS, (place.first_row + height - 1) // _ROWS + 1)
        band, column = (grid.ravel() for grid in np.meshgrid(bands, np.arange(0, width, tile.columns), indexing="ij"))
        inside = (band * _ROWS >= place.first_row) & (band * _ROWS + _ROWS <= place.first_row + height)
        inside &= column + tile.columns <= width
        chunks = np.stack([np.full_like(band, index), band, column], axis=1)
        whole.append(chunks[inside])
        edges.append(chunks[~inside])
    half = {"HALF": dtype == torch.bfloat16}
    tiled = {**half, "VECTOR": tile.vector, "BLOCK": tile.columns, "num_warps": tile.warps}
    kinds = (
        (_advance_tiles, whole, {**tiled, "MASKED": False}),
        (_advance_tiles, edges, {**tiled, "MASKED": True}),
        (_advance_elements, elements, {**half, "BLOCK": _ELEMENTS, "num_warps": 4}),
    )
    table = torch.tensor(facts, device=device)
    return [
        _Plan(kernel, torch.from_numpy(np.concatenate(chunks)).to(device), table, options, shapes)
        for kernel, chunks, options in kinds
        if sum(map(len, chunks))
    ]


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[1] >= _NARROW and matrix.shape[1] % 16 == 0 and matrix.data_ptr() % 16 == 0


def _where(place: Place) -> tuple[int, int, int, int]:
    return place.columns, _signed(place.tensor), place.first_row, place.first_column


def _signed(number: int) -> int:
    """The same 32 bits as a signed number: every tensor's id is of one type for the compiler."""
    return (number + 2**31) % 2**32 - 2**31


def works() -> str | None:
    """None where a kernel compiles and runs; else why not."""
    try:
        probe = torch.zeros(1, 64, device="cuda")
        Sweeps([(probe, Place(0, 64), True)], _PROBE_FAMILY).advance([Move((), 0.5)])
    except Exception as error:  # noqa: BLE001 (a compiler or driver that is missing shows itself in many ways)
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


_PROBE_FAMILY: Any = Family("rademacher", 1, np.array([-1.0, 1.0], dtype=np.float32))


@triton.jit
def _seed(words, at):
    """The two halves of the 64-bit seed at a place of the words."""
    low = tl.load(words + at).to(tl.uint32, bitcast=True)
    high = tl.load(words + at + 1).to(tl.uint32, bitcast=True)
    return low, high


@triton.jit
def _philox(k0, k1, block, columns, column, tensor, stream):
    """Ten rounds at position block * columns + column, for each column: four words."""
    position = (block.to(tl.int64) * columns + column).to(tl.uint64)
    c0 = position.to(tl.uint32)
    c1 = (position >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + tensor.to(tl.uint32)
    c3 = tl.zeros_like(c0) + stream
    for _ in tl.static_range(10):
        # One wide product gives both halves; Triton's own Philox asks for each by itself.
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def _tile_bits(words, term, terms, band, columns, column, tensor, BITS: tl.constexpr):
    """The bits of a term's noise on a tile: [16, columns]."""
    k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
    row = tl.arange(0, 16)[:, None]
    if BITS == 8:
        w0, w1, w2, w3 = _philox(k0, k1, band, columns, column, tensor, 0)
        low = tl.where(row < 4, w0[None, :], w1[None, :])
        high = tl.where(row < 12, w2[None, :], w3[None, :])
        bits = (tl.where(row < 8, low, high) >> (8 * (row % 4)).to(tl.uint32)) & 255
    else:
        w0, w1, w2, w3 = _philox(k0, k1, band // 8, columns, column, tensor, 0)
        word = (band % 8) // 2
        chosen = tl.where(word < 2, tl.where(word < 1, w0, w1), tl.where(word < 3, w2, w3))
        bits = (chosen[None, :] >> ((band % 2) * 16 + row).to(tl.uint32)) & 1
    return bits


@triton.jit
def _values(words, term, bits, BITS: tl.constexpr):
    """A term's noise times its coefficient, by the bits of the elements."""
    if BITS == 8:
        # The table goes to shared memory; a load by address would carry the tile to a layout of its own and back.
        table = tl.load(words + term * 256 + tl.arange(0, 256)).to(tl.float32, bitcast=True)
        flat = tl.reshape(bits.to(tl.int32), [bits.numel])
        values = tl.reshape(tl.gather(table, flat, 0), bits.shape)
    else:
        minus = tl.load(words + term * 2).to(tl.float32, bitcast=True)
        plus = tl.load(words + term * 2 + 1).to(tl.float32, bitcast=True)
        values = tl.where(bits == 1, plus, minus)
    return values


@triton.jit
def _tile_rounding(k0, k1, band, columns, column, tensor):
    """Sixteen random bits an element of a tile, of stream 1: [16, columns]."""
    row = tl.arange(0, 16)[:, None]
    a0, a1, a2, a3 = _philox(k0, k1, 2 * band, columns, column, tensor, 1)
    b0, b1, b2, b3 = _philox(k0, k1, 2 * band + 1, columns, column, tensor, 1)
    first = tl.where(row < 4, tl.where(row < 2, a0[None, :], a1[None, :]), tl.where(row < 6, a2[None, :], a3[None, :]))
    last = tl.where(
        row < 12, tl.where(row < 10, b0[None, :], b1[None, :]), tl.where(row < 14, b2[None, :], b3[None, :])
    )
    return (tl.where(row < 8, first, last) >> (16 * (row % 2)).to(tl.uint32)) & 0xFFFF


@triton.jit
def _stochastic(value, random):
    """Rounded to bfloat16 by the random bits, as a float32; infinity stays infinity, and a NaN of the GPU's a NaN."""
    bits = value.to(tl.uint32, bitcast=True) + tl.where(value == value, random, 0)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _nearest(value, HALF: tl.constexpr):
    """The value as memory holds it; bfloat16 to nearest, ties to even."""
    return value.to(tl.bfloat16) if HALF else value


@triton.jit
def _cut(value, HALF: tl.constexpr):
    """The value as memory holds it, where it is one of bfloat16 already."""
    return (value.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True) if HALF else value


@triton.jit(do_not_specialize=[
    "first", "count", "points", "terms", "height", "width", "columns", "tensor", "first_row", "first_column",
])  # fmt: skip
def _perturb_tiles(
    weight, out, words, first, count, points, terms, height, width, columns, tensor, first_row, first_column,
    SHARED: tl.constexpr, BITS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = weight.dtype.element_ty == tl.bfloat16
    width = tl.multiple_of(width, VECTOR)
    band = first_row // 16 + tl.program_id(1)
    local = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = band * 16 - first_row + tl.arange(0, 16)
    offset = row.to(tl.int64)[:, None] * width + local[None, :]
    inside = None
    if MASKED:
        inside = ((row >= 0) & (row < height))[:, None] & (local < width)[None, :]
    base = tl.load(weight + offset, mask=inside).to(tl.float32)
    column = first_column + local
    size = height.to(tl.int64) * width
    if SHARED > 0:
        for group in range(points // SHARED):
            begin = group * SHARED
            bits = _tile_bits(words, begin, terms, band, columns, column, tensor, BITS)
            for side in tl.static_range(SHARED):
                value = base + _values(words, begin + side, bits, BITS)
                tl.store(out + (begin + side) * size + offset, _nearest(value, HALF), mask=inside)
    else:
        starts = words + terms * ((1 << BITS) + 2) + first
        for point in range(count):
            value = base
            for term in range(tl.load(starts + point), tl.load(starts + point + 1)):
                bits = _tile_bits(words, term, terms, band, columns, column, tensor, BITS)
                value += _values(words, term, bits, BITS)
            tl.store(out + point * size + offset, _nearest(value, HALF), mask=inside)


@triton.jit
def _element_bits(k0, k1, row, columns, column, tensor, stream, BITS: tl.constexpr):
    """The bits of each element, a Philox call for every one of them."""
    band: tl.constexpr = 128 // BITS
    w0, w1, w2, w3 = _philox(k0, k1, row // band, columns, column, tensor, stream)
    first = (row % band) * BITS
    word = first // 32
    chosen = tl.where(word < 2, tl.where(word < 1, w0, w1), tl.where(word < 3, w2, w3))
    return (chosen >> (first % 32).to(tl.uint32)) & ((1 << BITS) - 1)


@triton.jit(do_not_specialize=[
    "first", "count", "points", "terms", "height", "width", "columns", "tensor", "first_row", "first_column", "a_point",
])  # fmt: skip
def _perturb_elements(
    weight, out, words, first, count, points, terms, height, width, columns, tensor, first_row, first_column,
    rows, a_point,
    BITS: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """CHOSEN: output row i is row rows[i] at point first + i // a_point; else every row at `count` points."""
    HALF: tl.constexpr = weight.dtype.element_ty == tl.bfloat16
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = height.to(tl.int64) * width
    inside = place < size
    index, local = place // width, place % width
    row = index
    if CHOSEN:
        row = tl.load(rows + index, mask=inside, other=0) - first_row
    base = tl.load(weight + row * width + local, mask=inside, other=0.0).to(tl.float32)
    starts = words + terms * ((1 << BITS) + 2) + first
    for turn in range(count):
        value = base
        if CHOSEN:
            begin = tl.load(starts + index // a_point, mask=inside, other=0)
            last = tl.load(starts + index // a_point + 1, mask=inside, other=0)
            for step in range(tl.max(last - begin, axis=0)):
                term = tl.minimum(begin + step, terms - 1)
                at = words + terms * (1 << BITS) + 2 * term
                k0 = tl.load(at).to(tl.uint32, bitcast=True)
                k1 = tl.load(at + 1).to(tl.uint32, bitcast=True)
                bits = _element_bits(k0, k1, first_row + row, columns, first_column + local, tensor, 0, BITS)
                noise = tl.load(words + term * (1 << BITS) + bits.to(tl.int32)).to(tl.float32, bitcast=True)
                value = tl.where(begin + step < last, value + noise, value)
        else:
            for term in range(tl.load(starts + turn), tl.load(starts + turn + 1)):
                k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
                bits = _element_bits(k0, k1, first_row + row, columns, first_column + local, tensor, 0, BITS)
                value += _values(words, term, bits, BITS)
        tl.store(out + turn * size + place, _nearest(value, HALF), mask=inside)


@triton.jit
def _part(table, tensor, VECTOR: tl.constexpr):
    """A tensor's facts: height, width, columns, id, first row, first column, and whether it is decayed."""
    at = table + tensor * 9
    width = tl.multiple_of(tl.load(at + 2), VECTOR)
    where = tl.load(at + 3), tl.load(at + 4), tl.load(at + 5), tl.load(at + 6)
    return tl.load(at + 1), width, where[0], where[1], where[2], where[3], tl.load(at + 7)


@triton.jit
def _pointer(table, tensor, HALF: tl.constexpr, BYTES: tl.constexpr):
    address = tl.load(table + tensor * 9)
    if HALF:
        pointer = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), BYTES)
    else:
        pointer = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), BYTES)
    return pointer


@triton.jit
def _decayed(value, words, at, decayed):
    factor = tl.load(words + at).to(tl.float32, bitcast=True)
    return value * tl.where(decayed != 0, factor, 1.0)


@triton.jit(do_not_specialize=["moves", "terms"])
def _advance_tiles(
    chunks, table, words, moves, terms,
    HALF: tl.constexpr, DECAYS: tl.constexpr, BITS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index, band, begin = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2)
    weight = _pointer(table, index, HALF, 16)
    height, width, columns, tensor, first_row, first_column, decayed = _part(table, index, VECTOR)
    local = tl.multiple_of(begin, VECTOR) + tl.arange(0, BLOCK)
    row = band * 16 - first_row + tl.arange(0, 16)
    offset = row[:, None] * width + local[None, :]
    inside = None
    if MASKED:
        inside = ((row >= 0) & (row < height))[:, None] & (local < width)[None, :]
    value = tl.load(weight + offset, mask=inside).to(tl.float32)
    column = first_column + local
    starts = terms * ((1 << BITS) + 2)
    rounding = starts + moves + 1
    if SINGLE:  # the same without the loops, which lets everything be in flight at once
        if DECAYS:
            value = _decayed(value, words, rounding + 2, decayed)
        value += _values(words, 0, _tile_bits(words, 0, terms, band, columns, column, tensor, BITS), BITS)
        if HALF:
            k0, k1 = _seed(words, rounding)
            value = _stochastic(value, _tile_rounding(k0, k1, band, columns, column, tensor))
    else:
        for move in range(moves):
            if DECAYS:
                value = _decayed(value, words, rounding + 2 * moves + move, decayed)
            for term in range(tl.load(words + starts + move), tl.load(words + starts + move + 1)):
                bits = _tile_bits(words, term, terms, band, columns, column, tensor, BITS)
                value += _values(words, term, bits, BITS)
            if HALF:
                k0, k1 = _seed(words, rounding + 2 * move)
                value = _stochastic(value, _tile_rounding(k0, k1, band, columns, column, tensor))
    tl.store(weight + offset, _cut(value, HALF), mask=inside)


@triton.jit(do_not_specialize=["moves", "terms"])
def _advance_elements(
    chunks, table, words, moves, terms,
    HALF: tl.constexpr, DECAYS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index = tl.load(chunk)
    weight = _pointer(table, index, HALF, 2)
    height, width, columns, tensor, first_row, first_column, decayed = _part(table, index, 1)
    place = tl.load(chunk + 1) + tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = first_row + place // width, first_column + place % width
    value = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    starts = terms * ((1 << BITS) + 2)
    rounding = starts + moves + 1
    for move in range(moves):
        if DECAYS:
            value = _decayed(value, words, rounding + 2 * moves + move, decayed)
        for term in range(tl.load(words + starts + move), tl.load(words + starts + move + 1)):
            k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
            value += _values(words, term, _element_bits(k0, k1, row, columns, column, tensor, 0, BITS), BITS)
        if HALF:
            k0, k1 = _seed(words, rounding + 2 * move)
            value = _stochastic(value, _element_bits(k0, k1, row, columns, column, tensor, 1, 16))
    tl.store(weight + place, _cut(value, HALF), mask=inside)


@triton.jit(do_not_specialize=["points", "terms", "total"])
def _perturb_small(
    chunks, table, out, words, points, terms, total,
    HALF: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = chunks + tl.program_id(0).to(tl.int64) * 3
    index = tl.load(chunk)
    weight = _pointer(table, index, HALF, 2)
    height, width, columns, tensor, first_row, first_column, _ = _part(table, index, 1)
    place = tl.load(chunk + 1) + tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = first_row + place // width, first_column + place % width
    base = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    target = out + tl.load(table + index * 9 + 8) + place
    starts = words + terms * ((1 << BITS) + 2)
    for point in range(points):
        value = base
        for term in range(tl.load(starts + point), tl.load(starts + point + 1)):
            k0, k1 = _seed(words, terms * (1 << BITS) + 2 * term)
            value += _values(words, term, _element_bits(k0, k1, row, columns, column, tensor, 0, BITS), BITS)
        tl.store(target + point * total.to(tl.int64), _nearest(value, HALF), mask=inside)

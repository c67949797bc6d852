"""The noise on a GPU with Triton: the same sweeps as `philox`, the same bits.

A wide matrix is swept in tiles of 16 rows: a tile's Philox words are made once and serve all 16 rows (of either
family) and all points that share a seed. Vectors, narrow matrices and chosen rows go element by element. Seeds and
coefficients are values on the device, so a captured graph can be replayed with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
import triton
from torch import Tensor

from noback.directions.families import FAMILIES, Family
from noback.directions.kernels_triton import (
    advance_elements,
    advance_tiles,
    perturb_elements,
    perturb_group,
    perturb_rows,
    perturb_small,
    perturb_tiles,
)
from noback.directions.philox import Place, mirrored
from noback.directions.placing import Points, packed, shared
from noback.directions.tiles import USUAL, Tile, Tiles, tiles_for
from noback.values import Move, Term

_ROWS = 16  # of a tile
_ELEMENTS = 256  # that a program of the element-wise kernels takes
_MOVES_A_PASS = 512
_NARROW = 64  # a matrix of fewer columns goes element by element
_LARGE = 2**24  # weights from which on the choice of tiles matters
Part = tuple[Tensor, Place, bool]


F = TypeVar("F", bound=Callable[..., Any])


def _there(method: F) -> F:
    """Within, the current GPU is the tensors' own, on which kernels are launched."""

    @wraps(method)
    def call(self: Sweeps, *args: Any, **options: Any) -> Any:
        with torch.cuda.device(self._index):
            return method(self, *args, **options)

    return cast(F, call)


class Sweeps:
    """The two sweeps over some tensors of one GPU; `advance` takes all of them in a few launches."""

    def __init__(self, parts: Sequence[Part], family: Family, tiles: Tiles | None = None) -> None:
        """`parts`: each tensor as a matrix, its place in the noise, and whether weight decay applies to it.

        `tiles` none: the GPU's own fastest.
        """
        self._device, self._family, self._parts = parts[0][0].device, family, parts
        self._index = self._device.index if self._device.type == "cuda" else -1
        self._values = torch.from_numpy(family.values.astype(np.float64)).to(self._device)
        self._groups: dict[tuple[int, ...], _Plan] = {}
        self._steps: dict[tuple[int, bool], Any] = {}  # captured sweeps of one move
        self._slots: dict[tuple[int, ...], tuple[tuple[Move, ...], Points]] = {}
        self._tiles = {dtype: tiles or _tiles(parts, dtype) for dtype in {tensor.dtype for tensor, _, _ in parts}}
        self._plans = [
            plan
            for dtype, tiles in self._tiles.items()
            for plan in _plans(dict(enumerate(parts)), dtype, tiles.advanced)
        ]

    def order(self, points: Sequence[Move]) -> tuple[int, ...]:
        """What of the points a captured forward depends on: how many terms each has, and what of them is shared."""
        together = shared(points)
        return (together, together == 2 and mirrored(points), *(len(point.terms) for point in points))

    def placed(self, points: Sequence[Move]) -> Points:
        """The points on the device, in a place that stays the same for points of one order."""
        order = self.order(points)
        known, found = self._slots.get(order, (None, None))
        if found is None or known != tuple(points):
            words = torch.from_numpy(packed(self._family, points))
            if found is None:
                terms = sum(len(point.terms) for point in points)
                with torch.inference_mode(mode=False):  # it is written within and outside that mode
                    place = torch.empty_like(words, device=self._device)
                    found = Points(place, len(points), terms, order[0], bool(order[1]))
            found.words.copy_(words, non_blocking=True)
            self._slots[order] = (tuple(points), found)
        return found

    @_there
    def perturb(self, out: Tensor, weight: Tensor, place: Place, points: Points, only: int | None = None) -> None:
        """Write the matrix at each point (or at one of them) to `out` [points, rows, columns]."""
        height, width = weight.shape
        tile = self._tiles[weight.dtype].perturbed
        first, count = (0, points.count) if only is None else (only, 1)
        options = points.options if only is None else {"SHARED": 0, "MIRRORED": False, "ALONE": False}
        args = (weight, out, points.words, first, count, points.count, points.terms, height, width, *_where(place))
        if _is_wide(weight):
            bands = (place.first_row + height - 1) // _ROWS - place.first_row // _ROWS + 1
            even = place.first_row % _ROWS == 0 and height % _ROWS == 0 and width % tile.columns == 0
            perturb_tiles[(triton.cdiv(width, tile.columns), bands)](
                *args, **options, **tile.options, BITS=self._family.bits, MASKED=not even, enable_fp_fusion=False,
            )  # fmt: skip
            return
        perturb_elements[(triton.cdiv(height * width, _ELEMENTS),)](
            *args, BITS=self._family.bits, BLOCK=_ELEMENTS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip

    @_there
    def look_up(
        self, out: Tensor, weight: Tensor, place: Place, points: Points, rows: Tensor, only: int | None = None
    ) -> None:
        """Write row `rows[i]` of the matrix at its point to `out[i]`; the rows of each point follow one another."""
        width = weight.shape[1]
        first, count = (0, points.count) if only is None else (only, 1)
        block = min(triton.next_power_of_2(width), 1024)
        perturb_rows[(len(rows), triton.cdiv(width, block))](
            weight, out, points.words, rows, first, len(rows) // count, points.terms, width, *_where(place),
            BITS=self._family.bits, BLOCK=block, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip

    @_there
    def small(self, points: Points) -> dict[int, Tensor]:
        """Every vector and narrow matrix at each point, by its place among the parts: [points, rows, columns]."""
        found: dict[int, Tensor] = {}
        for plan in self._plans:
            if plan.kernel is advance_elements:
                found |= plan.perturbed(perturb_small, points, BITS=self._family.bits)
        return found

    def can_group(self, part: int) -> bool:
        """Whether a part can be perturbed in one launch with others: a matrix of whole tiles only."""
        tensor, place, _ = self._parts[part]
        whole = place.first_row % _ROWS == 0 and tensor.shape[0] % _ROWS == 0
        return whole and _is_wide(tensor) and tensor.shape[1] % self._tiles[tensor.dtype].perturbed.columns == 0

    def prepare(self, parts: Sequence[int]) -> None:
        """Make what `group` needs for these parts: while a forward is captured nothing can be brought to the device."""
        dtype = self._parts[parts[0]][0].dtype
        if tuple(parts) not in self._groups:
            (plan,) = _plans({part: self._parts[part] for part in parts}, dtype, self._tiles[dtype].perturbed)
            self._groups[tuple(parts)] = plan

    @_there
    def group(self, parts: Sequence[int], points: Points) -> dict[int, Tensor]:
        """Prepared parts of one type at each point in one launch: [points, rows, columns]."""
        plan = self._groups[tuple(parts)]
        return plan.perturbed(perturb_group, points, BITS=self._family.bits, **points.options)

    @_there
    def advance(self, moves: Sequence[Move]) -> None:
        """Apply the moves to every tensor in place, in their order."""
        for begin in range(0, len(moves), _MOVES_A_PASS):
            some = moves[begin : begin + _MOVES_A_PASS]
            placed, decays = self.placed(some), any(move.decay != 1.0 for move in some)
            if placed.count == 1:
                self._step(placed, decays=decays)
            else:
                self._advance(placed, decays=decays)

    @_there
    def advance_along(self, seeds: Sequence[int], coefficients: Tensor, decay: float) -> None:
        """Apply one move whose coefficients, float64 [seeds], are on the GPU: its tables are folded there."""
        move = Move(tuple(Term(seed, 0.0) for seed in seeds), decay)
        placed = self.placed([move])
        self._slots[self.order([move])] = ((), placed)  # what stands there from now on is not known here
        tables = (self._values * coefficients[:, None]).float()
        placed.words[: tables.numel()].copy_(tables.view(torch.int32).view(-1))
        self._step(placed, decays=decay != 1.0)

    def _step(self, placed: Points, *, decays: bool) -> None:
        """One move: plainly the first time, captured the second, from then on replayed, which is one launch."""
        key = placed.terms, decays
        if key not in self._steps:
            self._advance(placed, decays=decays)
            self._steps[key] = None
            return
        if self._steps[key] is None:
            self._steps[key] = _captured(self._device, partial(self._advance, placed, decays=decays))
        self._steps[key].replay()

    def _advance(self, placed: Points, *, decays: bool) -> None:
        single = placed.count == 1 and placed.terms == 1
        for plan in self._plans:
            alone = {"SINGLE": single} if plan.kernel is advance_tiles else {}
            plan.launch(placed.words, placed.count, placed.terms, DECAYS=decays, BITS=self._family.bits, **alone)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Tensors of one type that one launch advances: what each program does, and a row of facts a tensor."""

    kernel: Any
    chunks: Tensor  # (tensor, band or first element, first column) a program
    facts: Tensor
    options: dict[str, Any]
    shapes: dict[int, tuple[int, int, int]]  # rows, columns and beginning of each tensor, by its place among the parts

    def launch(self, *args: Any, **options: Any) -> None:
        """Sweep them in place."""
        self.kernel[(len(self.chunks),)](
            self.chunks, self.facts, *args, **options, **self.options, enable_fp_fusion=False
        )

    def perturbed(self, kernel: Any, points: Points, **options: Any) -> dict[int, Tensor]:
        """All of them at each point, in one launch."""
        rows, columns, begin = list(self.shapes.values())[-1]
        total = _padded(begin + rows * columns)
        dtype = torch.bfloat16 if self.options["HALF"] else torch.float32
        out = torch.empty((points.count, total), dtype=dtype, device=self.chunks.device)
        kernel[(len(self.chunks),)](
            self.chunks, self.facts, out, points.words, points.count, points.terms, total, **options, **self.options,
            enable_fp_fusion=False,
        )  # fmt: skip
        return {
            part: out[:, begin : begin + rows * columns].view(points.count, rows, columns)
            for part, (rows, columns, begin) in self.shapes.items()
        }


def _plans(parts: Mapping[int, Part], dtype: torch.dtype, tile: Tile) -> list[_Plan]:
    """Whole tiles, tiles that reach over an edge, and what goes element by element."""
    whole, edges, elements = [], [], []
    facts: list[list[int]] = []
    tiled: dict[int, tuple[int, int, int]] = {}
    small: dict[int, tuple[int, int, int]] = {}
    device = None
    for part, (tensor, place, decayed) in parts.items():
        if tensor.dtype != dtype:
            continue
        (height, width), device = tensor.shape, tensor.device
        shapes = tiled if _is_wide(tensor) else small
        rows, columns, begin = list(shapes.values())[-1] if shapes else (0, 0, 0)
        begin = _padded(begin + rows * columns)  # where 16 bytes begin, as a product's bias should
        shapes[part] = (height, width, begin)
        index = len(facts)
        facts.append([tensor.data_ptr(), height, width, *_where(place), int(decayed), begin])
        if shapes is small:
            first = np.arange(0, tensor.numel(), _ELEMENTS)
            elements.append(np.stack([np.full_like(first, index), first, np.zeros_like(first)], axis=1))
            continue
        bands = np.arange(place.first_row // _ROWS, (place.first_row + height - 1) // _ROWS + 1)
        band, column = (grid.ravel() for grid in np.meshgrid(bands, np.arange(0, width, tile.columns), indexing="ij"))
        inside = (band * _ROWS >= place.first_row) & (band * _ROWS + _ROWS <= place.first_row + height)
        inside &= column + tile.columns <= width
        chunks = np.stack([np.full_like(band, index), band, column], axis=1)
        whole.append(chunks[inside])
        edges.append(chunks[~inside])
    half = {"HALF": dtype == torch.bfloat16}
    by_tile = {**half, **tile.options}
    kinds = (
        (advance_tiles, whole, {**by_tile, "MASKED": False}, tiled),
        (advance_tiles, edges, {**by_tile, "MASKED": True}, tiled),
        (advance_elements, elements, {**half, "BLOCK": _ELEMENTS, "num_warps": 4}, small),
    )
    table = torch.tensor(facts, device=device)
    return [
        _Plan(kernel, torch.from_numpy(np.concatenate(chunks)).to(device), table, options, shapes)
        for kernel, chunks, options, shapes in kinds
        if sum(map(len, chunks))
    ]


def _padded(elements: int) -> int:
    return -(-elements // 16) * 16


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[1] >= _NARROW and matrix.shape[1] % 16 == 0 and matrix.data_ptr() % 16 == 0


def _where(place: Place) -> tuple[int, int, int, int]:
    return place.columns, _signed(place.tensor), place.first_row, place.first_column


def _signed(number: int) -> int:
    """The same 32 bits as a signed number: every tensor's id is of one type for the compiler."""
    return (number + 2**31) % 2**32 - 2**31


def _tiles(parts: Sequence[Part], dtype: torch.dtype) -> Tiles:
    """The GPU's fastest tiles; where little is swept, the usual ones."""
    name, device = str(dtype).removeprefix("torch."), parts[0][0].device
    if sum(tensor.numel() for tensor, _, _ in parts) < _LARGE:
        return USUAL[name]
    gpu, compiler = torch.cuda.get_device_name(device), f"Triton {triton.__version__}"
    try:
        return tiles_for(gpu, compiler, name, partial(seconds, device, dtype))
    except torch.OutOfMemoryError:
        return USUAL[name]


def seconds(device: torch.device, dtype: torch.dtype, tile: Tile) -> tuple[float, float]:
    """What an advance and a perturbation of some layers take with a tile, launched as graphs."""
    weights = [torch.zeros(4096, 1024, dtype=dtype, device=device) for _ in range(8)]
    places = [Place(number, 1024) for number in range(len(weights))]
    family = FAMILIES["normal"]
    sweeps = Sweeps([(*part, True) for part in zip(weights, places, strict=True)], family, Tiles(tile, tile))
    points = sweeps.placed([Move((Term(1, 1e-3),)), Move((Term(1, -1e-3),))])
    move = sweeps.placed([Move((Term(1, 1e-3),))])
    out = torch.empty((2, 4096, 1024), dtype=dtype, device=device)

    def advance() -> None:
        sweeps._advance(move, decays=False)

    def perturb() -> None:
        for weight, place in zip(weights, places, strict=True):
            sweeps.perturb(out, weight, place, points)

    try:
        with torch.cuda.device(device):
            return _timed(device, advance), _timed(device, perturb)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 (a kernel that this GPU cannot run shows itself in many ways)
        return math.inf, math.inf


def _captured(device: torch.device, work: Callable[[], None]) -> Any:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


def _timed(device: torch.device, work: Callable[[], None]) -> float:
    work()
    graph = _captured(device, work)
    found = []
    for _ in range(7):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        found.append(float(began.elapsed_time(ended)) / 1e3)
    return sorted(found)[len(found) // 2]


def works() -> str | None:
    """None where a kernel compiles and runs; else why not."""
    try:
        probe = torch.zeros(1, 64, device="cuda")
        Sweeps([(probe, Place(0, 64), True)], _PROBE_FAMILY).advance([Move((), 0.5)])
    except Exception as error:  # noqa: BLE001 (a compiler or driver that is missing shows itself in many ways)
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


_PROBE_FAMILY: Any = Family("rademacher", 1, np.array([-1.0, 1.0], dtype=np.float32))

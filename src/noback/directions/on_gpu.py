"""The sweeps over tensors on a GPU: with Triton where it runs, else fetched to the CPU, slowly, to the same bits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noback.directions import sweeps
from noback.directions.families import Family
from noback.directions.philox import Place
from noback.values import Move, Term

Part = tuple[Tensor, Place, bool]  # a matrix, its place in the noise, and whether weight decay applies to it


class GpuSweeps(Protocol):
    """Sweeps over tensors of one GPU."""

    def order(self, points: Sequence[Move]) -> Hashable:
        """What of the points a captured forward depends on; the rest may be others when it is replayed."""
        ...

    def placed(self, points: Sequence[Move]) -> Any:
        """The points as the sweeps take them."""
        ...

    def perturb(self, out: Tensor, weight: Tensor, place: Place, points: Any, only: int | None = None) -> None:
        """Write the matrix at each point (or at one of them) to `out` [points, rows, columns]."""
        ...

    def look_up(
        self, out: Tensor, weight: Tensor, place: Place, points: Any, rows: Tensor, only: int | None = None
    ) -> None:
        """Write row `rows[i]` of the matrix at its point to `out[i]`; the rows of each point follow one another."""
        ...

    def small(self, points: Any) -> dict[int, Tensor]:
        """Tensors that one launch perturbs together, by their place among the parts: [points, rows, columns]."""
        ...

    def can_group(self, part: int) -> bool:
        """Whether a part can be perturbed in one launch with others."""
        ...

    def prepare(self, parts: Sequence[int]) -> None:
        """Make what `group` needs for these parts, which are of one type and can be grouped."""
        ...

    def group(self, parts: Sequence[int], points: Any) -> dict[int, Tensor]:
        """Prepared parts by their place: [points, rows, columns]."""
        ...

    def advance(self, moves: Sequence[Move]) -> None:
        """Apply the moves to every tensor in place."""
        ...

    def advance_along(self, seeds: Sequence[int], coefficients: Tensor, decay: float) -> None:
        """Apply one move whose coefficients, float64 [seeds], are on the GPU."""
        ...


def gpu_sweeps(parts: Sequence[Part], family: Family) -> GpuSweeps:
    """The sweeps over these tensors."""
    if why_no_triton() is None:
        from noback.directions.philox_triton import Sweeps

        return Sweeps(parts, family)
    return _Fetched(parts, family)


@cache
def why_no_triton() -> str | None:
    """None where Triton's kernels run; else what is in the way."""
    try:
        from noback.directions import philox_triton
    except ImportError as error:
        return str(error)
    return philox_triton.works()


class _Fetched:
    """Takes a tensor to the CPU, sweeps it there and brings it back."""

    def __init__(self, parts: Sequence[Part], family: Family) -> None:
        self._parts, self._family = parts, family

    def order(self, points: Sequence[Move]) -> Hashable:
        return tuple(points)

    def placed(self, points: Sequence[Move]) -> Sequence[Move]:
        return points

    def perturb(
        self, out: Tensor, weight: Tensor, place: Place, points: Sequence[Move], only: int | None = None
    ) -> None:
        chosen = points if only is None else [points[only]]
        swept = torch.empty(out.shape, dtype=out.dtype)
        sweeps.perturb(tensor_array(swept), tensor_array(weight.cpu()), place, self._family, chosen)
        out.copy_(swept)

    def look_up(
        self, out: Tensor, weight: Tensor, place: Place, points: Sequence[Move], rows: Tensor, only: int | None = None
    ) -> None:
        chosen = points if only is None else [points[only]]
        found = []
        for point, asked in zip(chosen, rows.cpu().chunk(len(chosen)), strict=True):
            ascending, places = torch.unique(asked, return_inverse=True)
            table = torch.empty((1, len(ascending), weight.shape[1]), dtype=weight.dtype)
            sweeps.perturb(
                tensor_array(table), tensor_array(weight.cpu()), place, self._family, [point], rows=ascending.numpy()
            )
            found.append(table[0][places])
        out.copy_(torch.cat(found))

    def small(self, _points: Sequence[Move]) -> dict[int, Tensor]:
        return {}

    def can_group(self, _part: int) -> bool:
        return False

    def prepare(self, parts: Sequence[int]) -> None:
        raise NotImplementedError("none can be grouped: `can_group` says so")

    def group(self, parts: Sequence[int], points: Any) -> dict[int, Tensor]:
        raise NotImplementedError("none can be grouped: `can_group` says so")

    def advance(self, moves: Sequence[Move]) -> None:
        spared = [Move(move.terms) for move in moves]
        for tensor, place, decayed in self._parts:
            fetched = tensor.cpu()
            sweeps.advance([(tensor_array(fetched), place)], self._family, moves if decayed else spared)
            tensor.copy_(fetched)

    def advance_along(self, seeds: Sequence[int], coefficients: Tensor, decay: float) -> None:
        self.advance([move_along(seeds, coefficients, decay)])


def move_along(seeds: Sequence[int], coefficients: Tensor, decay: float) -> Move:
    """The move along some directions by coefficients that a tensor holds."""
    return Move(tuple(map(Term, seeds, coefficients.tolist())), decay)


def tensor_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as NumPy sees it; bfloat16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()

"""The sweeps over the tuned tensors of a device, chosen once: a CPU's threads, or Triton on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

from torch import Tensor

from noback.directions.families import Noise
from noback.directions.philox import Place
from noback.values import Move


@dataclass(frozen=True, slots=True)
class Part:
    """A tuned tensor, where it lies in the noise, and whether weight decay applies to it."""

    tensor: Tensor
    place: Place
    decayed: bool

    @property
    def matrix(self) -> Tensor:
        """The tensor's memory as [rows, columns]."""
        return self.tensor.detach().view(len(self.tensor), -1)


class Products(NamedTuple):
    """A matrix's directions at some points as sums of thin products, coefficients and all."""

    of_rows: Tensor  # float32 [points, products, rows], with the coefficients
    of_columns: Tensor  # float32 [points, products, columns]


class Backend(Protocol):
    """Sweeps over tensors by name."""

    @property
    def small(self) -> Sequence[str]:
        """Tensors that are best perturbed all together."""

    @property
    def alone(self) -> Collection[str]:
        """Tensors that cannot be perturbed together with others."""

    def order(self, points: Sequence[Move]) -> Hashable:
        """Bring the points to where a captured forward reads them; returns what of them it was captured for."""

    def prepare(self, names: Sequence[str]) -> None:
        """Make what `perturb_together` needs for these tensors, which are of one type."""

    def perturb(self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None) -> Tensor:
        """The tensor (or its chosen rows, ascending) at each point, or at one of them: [points, *shape]."""

    def perturb_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """Prepared tensors, or the small ones, at each point: [points, *shape]."""

    def look_up(self, name: str, points: Sequence[Move], ids: Tensor, only: int | None = None) -> Tensor:
        """Rows `ids` of the tensor, the ids of each point one after the other: [*ids, *row]."""

    def products(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None
    ) -> Products | None:
        """What the points add to the tensor (or its chosen rows, ascending); None where that is no thin products."""

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to every tensor in place, in their order.

        With `coefficients`, float64 [terms] on the device, they are those of the only move's terms.
        """


def backend_for(parts: Mapping[str, Part], noise: Noise) -> Backend:
    """The fastest sweeps for tensors of one device. A GPU without Triton is served by the CPU, slowly."""
    if next(iter(parts.values())).tensor.is_cuda and why_no_triton() is None:
        from noback.directions.philox_triton import TritonBackend

        return TritonBackend(parts, noise)
    from noback.directions.cpu_backend import CpuBackend

    return CpuBackend(parts, noise)


@cache
def why_no_triton() -> str | None:
    """None where Triton's kernels run; else what is in the way."""
    try:
        from noback.directions import philox_triton
    except ImportError as error:
        return str(error)
    return philox_triton.works()

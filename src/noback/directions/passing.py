"""A backend that passes everything on to another: what wraps one begins here."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from torch import Tensor

from noback.directions.backend import Backend, Products
from noback.values import Move


class Passing:
    """Does what the backend inside does."""

    def __init__(self, inside: Backend) -> None:
        self._inside = inside

    @property
    def small(self) -> Sequence[str]:
        """Those of the backend inside."""
        return self._inside.small

    @property
    def alone(self) -> Collection[str]:
        """Those of the backend inside."""
        return self._inside.alone

    def order(self, points: Sequence[Move]) -> Hashable:
        """Bring the points to where a captured forward reads them."""
        return self._inside.order(points)

    def prepare(self, names: Sequence[str]) -> None:
        """Make what `perturb_together` needs for these tensors."""
        self._inside.prepare(names)

    def perturb(self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None) -> Tensor:
        """The tensor (or its chosen rows) at each point, or at one of them: [points, *shape]."""
        return self._inside.perturb(name, points, rows, only)

    def perturb_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """Tensors at each point: [points, *shape]."""
        return self._inside.perturb_together(names, points)

    def look_up(self, name: str, points: Sequence[Move], ids: Tensor, only: int | None = None) -> Tensor:
        """Rows `ids` of the tensor at each point: [*ids, *row]."""
        return self._inside.look_up(name, points, ids, only)

    def products(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None
    ) -> Products | None:
        """What the points add to the tensor, as thin products; None where that is none."""
        return self._inside.products(name, points, rows, only)

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to every tensor in place."""
        self._inside.advance(moves, coefficients)

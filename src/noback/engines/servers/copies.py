"""What servers are given of a point: an adapter, beside the base that they began with or one that is sent to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from noback.engines.servers.checking import Named, Needs, needs_of
from noback.engines.servers.server import Copy
from noback.values import UNPERTURBED, Move
from noback.weights import Weights


class Base(NamedTuple):
    """Tensors that a server is to have in place of its model's own, and a number that no others have."""

    number: int
    tensors: Mapping[str, Tensor]


class Copies(Protocol):
    """Gives the adapters of points."""

    def needs(self) -> Needs:
        """What is asked of a server."""
        ...

    def base(self, points: Sequence[Move], limit: int | None) -> Base | None:
        """The tensors beside which adapters of these points have a rank within the limit; None: the model's own.

        Copies that were made beside another base are of no more use.
        """
        ...

    def copy(self, point: Move) -> Copy:
        """The adapter at a point, beside the last base."""
        ...


class AdapterCopies:
    """The tuned tensors are an adapter's: each point is one, and the server's model stays as it is."""

    def __init__(self, weights: Weights, published: Named) -> None:
        """`published`: an adapter's configuration and tensors as a server takes them, from tensors by their names."""
        self._weights, self._published = weights, published

    def needs(self) -> Needs:
        """The adapter's rank and linears."""
        return needs_of(self._weights.tensors, self._published)

    def base(self, _points: Sequence[Move], _limit: int | None) -> None:
        """The model's own."""
        return

    def copy(self, point: Move) -> Copy:
        """The tensors as they are at the point."""
        if point == UNPERTURBED:
            found = {name: tensor.clone() for name, tensor in self._weights.tensors.items()}
        else:
            found = {name: self._weights.perturbed(name, [point])[0] for name in self._weights.names}
        return Copy(*self._published(found))

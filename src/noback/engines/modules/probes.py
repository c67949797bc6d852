"""Probes: the points of one forward and their perturbed tensors, as the handler of a module sees them.

The batch is probe-major: the rows of the first probe, then those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from noback.directions.backend import Products
from noback.engines.modules.kinds import Forward, replaced_forward
from noback.engines.perturbed import Perturbed, TensorNames
from noback.engines.trust import Trust
from noback.errors import InputError
from noback.values import Move
from noback.weights import Weights, thin_tensors

Handled = tuple[nn.Module, Forward]  # a module, and the handler that stands in for its forward
_FIRST_LAYER = 6  # whole tensors that a forward has perturbed: about a layer


class PerturbedTensors:
    """The tuned tensors at the points of one forward: each is formed when a module asks for it, and not kept."""

    def __init__(
        self,
        weights: Weights,
        names: TensorNames,
        points: Sequence[Move],
        order: Sequence[str] | None,
        after_a_layer: Callable[[], None] = lambda: None,
    ) -> None:
        """`order`: the names as earlier forwards used them: small tensors are formed together; none: one by one.

        `after_a_layer` is called when about a layer of such a forward is done.
        """
        self._weights, self._names, self._points = weights, names, points
        self._moving = is_perturbed(points)
        self._thin = thin_tensors(weights)
        together = order is not None and self._moving
        self._small = weights.small(points) if together else {}
        self._groups = weights.groups(order or (), len(points)) if together else {}
        self._mark = order[_FIRST_LAYER] if order and len(order) > _FIRST_LAYER else None
        self._after_a_layer = after_a_layer
        self._ready: dict[str, Tensor] = {}  # those of a group whose turn has not come yet
        self.used: list[str] = []

    def moves(self, tensor: Tensor) -> bool:
        """Whether a tensor is another one at some point."""
        return self._moving and tensor in self._names

    def perturbed(self, tensor: Tensor, rows: Tensor | None, only: int | None) -> Tensor:
        """A tensor, or its chosen rows, at all points or at one: [points, *shape]."""
        name = self._names[tensor]
        if name in self._small:
            found = self._small[name] if only is None else self._small[name][only : only + 1]
            return found if rows is None else found[:, rows]
        if rows is None and only is None:
            return self._whole(name)
        return self._weights.perturbed(name, self._points, rows, only=only)

    def products(self, tensor: Tensor, rows: Tensor | None, only: int | None) -> Products | None:
        """What the points add to a tensor or its chosen rows, where that is a few thin products; None: it is not."""
        name = self._names[tensor]
        return self._weights.products(name, self._points, rows, only) if name in self._thin else None

    def looked_up(self, table: Tensor, ids: Tensor, only: int | None) -> Tensor:
        """Row `ids[...]` of an embedding; only the rows that are used are perturbed."""
        return self._weights.looked_up(self._names[table], self._points, ids, only=only)

    def seen_by_all(self, index: int) -> Perturbed:
        """Within, every torch function sees the tuned tensors at one of the points."""
        return Perturbed(self._weights, self._names, self._points, index)

    def _whole(self, name: str) -> Tensor:
        self.used.append(name)
        if name == self._mark:
            self._after_a_layer()
        if name not in self._groups:
            return self._weights.perturbed(name, self._points)
        if name not in self._ready:
            self._ready |= self._weights.perturbed_together(self._groups[name], self._points)
        return self._ready.pop(name)


@dataclass(frozen=True, slots=True)
class Probes:
    """What a handler is given."""

    points: Sequence[Move]
    examples: int  # rows of one probe
    tensors: PerturbedTensors
    trust: Trust
    output_rows: Mapping[nn.Module, Tensor]  # the outputs that are asked of a linear
    asked: Sequence[Handled]  # those linears
    groups: int = 1  # how many groups of examples have points of their own: each probe is one of a group
    branches: bool = True  # whether a thin branch may stand for a perturbed copy
    only: int | None = None  # within a module that takes the probes one by one, the probe in hand
    given: list[Tensor] | None = None  # keeps what the asked linears are given, in the order of the probes; none: no

    @property
    def count(self) -> int:
        """How many probes the rows at hand are of."""
        return len(self.points) if self.only is None else 1

    @property
    def rows(self) -> int:
        """The rows at hand."""
        return self.count * self.examples

    def perturbed(self, tensor: Tensor, rows: Tensor | None = None) -> Tensor:
        """[probes, *shape]"""
        return self.tensors.perturbed(tensor, rows, self.only)

    def products(self, tensor: Tensor, rows: Tensor | None = None) -> Products | None:
        """[probes, products, rows] and [probes, products, columns] of a tensor whose directions are thin products."""
        thin = self.branches and self.tensors.moves(tensor)
        return self.tensors.products(tensor, rows, self.only) if thin else None

    def values(self, tensor: Tensor) -> Tensor:
        """[probes, *shape], also of a tensor that is the same at every point."""
        if self.tensors.moves(tensor):
            return self.perturbed(tensor)
        return tensor.detach().expand(self.count, *tensor.shape)

    def bias(self, bias: Tensor, rows: Tensor | None = None) -> Tensor:
        """[probes, 1, outputs]"""
        if self.tensors.moves(bias):
            return self.perturbed(bias, rows)[:, None]
        return (bias if rows is None else bias[rows]).expand(self.count, 1, -1)

    def is_split(self, value: Tensor) -> bool:
        """Whether a tensor's first dimension runs over the probes' examples."""
        return value.dim() > 0 and len(value) == self.rows

    def is_shared(self, value: Tensor) -> bool:
        """Whether a tensor is one for all examples, such as positions of shape [1, tokens] or [tokens]."""
        return value.dim() == 1 or (len(value) == 1 and self.rows > 1)

    def is_flat(self, value: Tensor) -> bool:
        """Whether a model has joined examples and tokens into the first dimension, as OPT and experts do."""
        return value.dim() > 1 and len(value) % self.rows == 0

    def check_split(self, value: Tensor) -> None:
        """Refuse a tensor whose first dimension is something else."""
        if not self.is_split(value):
            raise InputError(
                f"a tensor of shape {tuple(value.shape)} does not begin with the batch of {self.rows} rows"
            )

    def spread(self, value: Tensor) -> Tensor:
        """The tensor with a row for each probe's examples."""
        if self.is_shared(value):
            return value.expand(self.rows, -1) if value.dim() == 1 else value.expand(self.rows, *value.shape[1:])
        if not (value.dim() == 2 and self.is_flat(value)):
            self.check_split(value)
        return value


@contextmanager
def installed(handled: Sequence[Handled], probes: Probes) -> Iterator[None]:
    """Within, the handlers stand in for the forwards of their modules."""
    with ExitStack() as stack:
        for module, handler in handled:
            stack.enter_context(replaced_forward(module, partial(handler, probes, module, module.forward)))
        yield


def is_perturbed(points: Sequence[Move]) -> bool:
    """Whether any of the points is another one than where the weights stand."""
    return any(point.terms for point in points)

"""Probed modules: P probes x B examples through a model in one forward, probe-major, each probe with its own weights.

Every topmost module that owns a tuned tensor is a *unit*: its `forward` is replaced on the instance while a batch
is scored and put back after. The model's tree, its names and its tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noback.engines.displaced import Displaced, TensorNames, Watch
from noback.engines.side_by_side import layer_norm, products
from noback.engines.units import (
    Forward,
    holding,
    is_conv1d,
    is_lora,
    is_plain,
    is_scaling,
    own_tensors,
    replaced_forward,
    units,
)
from noback.errors import InputError
from noback.values import Move
from noback.weights import Weights

_YOUNG = 6  # whole tensors that a forward has perturbed: about a layer


class Probes:
    """The units of a model, and the points at which they stand while a batch is scored."""

    def __init__(
        self,
        model: nn.Module,
        weights: Weights,
        rows: Mapping[nn.Module, Tensor],
        early: Callable[[], None] = lambda: None,
    ) -> None:
        """`rows` lets a plain linear module give only some of its outputs; `early` is called after about a layer."""
        self._weights, self._early = weights, early
        self._names = TensorNames(model.named_parameters(), weights)
        self._rows = rows
        self._units = [*units(model, self._names)]
        self._units += [module for module in rows if module not in self._units]
        self._always = [*rows, *(module for module in self._units if is_lora(module))]
        self._points: Sequence[Move] = ()
        self._only: int | None = None  # within a module that takes the probes one by one, the one in hand
        self._small: dict[str, Tensor] = {}  # tensors that were perturbed together beforehand: [points, *shape]
        self._used: list[str] = []  # whole tensors in the order in which the first forward perturbed them
        self._groups: dict[str, tuple[str, ...]] = {}  # those that are perturbed together, by each of their names
        self._ready: dict[str, Tensor] = {}  # those of a group whose turn has not come yet
        self._scaling: dict[nn.Module, bool] = {}  # whether modules were seen to take the vectors of all probes at once
        self._examples = 0
        self._moving = False
        self._watch: Watch | None = Watch(self._names)
        self.used_outside: set[str] = set()  # tuned tensors that the first forward used outside their module

    @contextmanager
    def asked_rows(self, point: Move, examples: int) -> Iterator[None]:
        """Within, the model takes `examples` rows, and the linears of which some outputs are asked give only those."""
        self._points, self._examples, self._only, self._small = [point], examples, None, {}
        self._moving = bool(point.terms)
        with ExitStack() as stack:
            for module in self._rows:
                stack.enter_context(replaced_forward(module, self._forward_of(module)))
            yield

    @contextmanager
    def at(self, points: Sequence[Move], examples: int) -> Iterator[None]:
        """Within, the model takes len(points) * examples rows, and each unit gives each probe its own weights."""
        self._points, self._examples, self._only = points, examples, None
        self._moving = any(point.terms for point in points)
        if self._watch is not None:  # nothing of a forward that failed
            self._used.clear()
        self._small = self._weights.small(points) if self._moving else {}
        self._groups = self._weights.groups(self._used, len(points)) if self._moving else {}
        try:
            with ExitStack() as stack:
                for module in self._units if self._moving else self._always:
                    stack.enter_context(replaced_forward(module, self._forward_of(module)))
                if self._watch is None or not self._moving:
                    yield
                else:
                    with self._watch:
                        yield
                    self.used_outside, self._watch = self._watch.seen, None
                    self._weights.groups(self._used, len(points))  # prepared now: the next forward may be captured
        finally:
            # Those of a forward that failed are not for the next one's points.
            self._small, self._ready = {}, {}

    @property
    def learning(self) -> bool:
        """Whether the next forward at displaced points is the first: from the second on, more is done at once."""
        return self._watch is not None

    def _forward_of(self, module: nn.Module) -> Forward:
        if is_plain(module, nn.LayerNorm):
            return partial(self._norm, module)
        if is_plain(module, nn.Linear):
            return partial(self._linear, module)
        if is_lora(module):
            return partial(self._lora, module)
        if is_conv1d(module):
            return partial(self._conv1d, module)
        if is_plain(module, nn.Embedding) and module.max_norm is None:
            return partial(self._embedding, module)
        return partial(self._scaled if is_scaling(module) else self._split, module, module.forward)

    def _linear(self, module: nn.Linear, x: Tensor) -> Tensor:
        """A product a probe with its own weight; a frozen weight is one shared product."""
        rows, x = self._rows.get(module), self._spread(x)
        bias = None if module.bias is None else self._bias(module.bias, rows)
        if not self._moves(module.weight):
            y = F.linear(x, module.weight if rows is None else module.weight[rows])
            if bias is not None:
                y.view(self._count, -1, y.shape[-1]).add_(bias)
            return y
        weight = self._perturbed(module.weight, rows)
        y = products(x.reshape(self._count, -1, x.shape[-1]), weight, bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _lora(self, module: Any, x: Tensor) -> Tensor:
        """Each probe's B A is added to the frozen weight, which costs less than a pass over the activations."""
        base, probes = module.base_layer, self._count
        down, up = (self._seen(part["default"].weight) for part in (module.lora_A, module.lora_B))
        frozen = base.weight.expand(probes, -1, -1)
        weight = torch.baddbmm(frozen, up, down, alpha=module.scaling["default"])
        x = self._spread(x)
        bias = None if base.bias is None else base.bias.expand(probes, 1, -1)
        y = products(x.reshape(probes, -1, x.shape[-1]), weight, bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _conv1d(self, module: Any, x: Tensor) -> Tensor:
        """GPT-2's linear, whose weight is [in, out]."""
        x = self._spread(x)
        weight = self._seen(module.weight).transpose(1, 2)
        y = products(x.reshape(self._count, -1, x.shape[-1]), weight, self._bias(module.bias, None))
        return y.view(*x.shape[:-1], y.shape[-1])

    def _seen(self, tensor: Tensor) -> Tensor:
        """[points, *shape]"""
        if self._moves(tensor):
            return self._perturbed(tensor)
        return tensor.detach().expand(self._count, *tensor.shape)

    def _bias(self, bias: Tensor, rows: Tensor | None) -> Tensor:
        """[points, 1, outputs]"""
        if self._moves(bias):
            return self._perturbed(bias, rows)[:, None]
        return (bias if rows is None else bias[rows]).expand(self._count, 1, -1)

    def _embedding(self, module: nn.Embedding, ids: Tensor) -> Tensor:
        """Only the rows that the batch uses are perturbed."""
        name = self._names[module.weight]
        if self._is_shared(ids):
            once = ids.reshape(1, -1).expand(self._count, -1)
            return self._weights.looked_up(name, self._points, once, only=self._only).repeat_interleave(
                self._examples, dim=0
            )
        self._check_split(ids)
        return self._weights.looked_up(name, self._points, ids, only=self._only)

    def _norm(self, module: nn.LayerNorm, x: Tensor) -> Tensor:
        """Each probe's part of the batch with its own scale and shift; on a GPU in one launch."""
        x = self._spread(x)
        weight, bias = (None if part is None else self._seen(part) for part in (module.weight, module.bias))
        return layer_norm(module, x, weight, bias, self._count)

    def _scaled(self, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """A norm of the model's own kind: its forward, once, with the vectors of all probes in place of its own.

        Rows are [probes, rows, width] there and vectors [probes, 1, width], so that each probe's rows meet its own.
        That is done only where it was seen to give what vectors give one by one.
        """
        plain = not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        if not plain or not self._is_scaling(module, forward, args[0]):
            return self._split(module, forward, *args, **kwargs)
        x = self._spread(args[0]) if self._is_shared(args[0]) else args[0]
        vectors = {key: self._seen(tensor) for key, tensor in own_tensors(module).items()}
        return _at_once(module, forward, x, vectors)

    def _is_scaling(self, module: nn.Module, forward: Forward, x: Tensor) -> bool:
        """Whether the module was seen to take vectors at once; the first forward sees all its uses."""
        if self._watch is None and module in self._scaling:
            return self._scaling[module]
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        self._scaling[module] = self._scaling.get(module, True) and self._takes_vectors(module, forward, x)
        return self._scaling[module]

    def _takes_vectors(self, module: nn.Module, forward: Forward, x: Tensor) -> bool:
        """Whether rows of two probes whose vectors are far apart come out as those of each by itself."""
        if not self._is_shared(x) and len(x) % (self._count * self._examples):
            return False
        rows = x if self._is_shared(x) else x.chunk(self._count)[0]
        rows = torch.cat([rows, rows]) if len(rows) == 1 else rows  # so that one row's place is not all places
        apart = []
        with torch._C.DisableTorchFunction():  # not a use of the tuned tensors as they stand
            own = {key: tensor.detach() for key, tensor in own_tensors(module).items()}
            further = {key: one + torch.linspace(0.5, 1.5, len(one)).to(one) for key, one in own.items()}
        try:
            for vectors in (own, further):
                with holding(module, vectors):
                    apart.append(forward(rows))
            both = {key: torch.stack([own[key], further[key]]) for key in own}
            return _is_close(_at_once(module, forward, torch.cat([rows, rows]), both), torch.cat(apart))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 (whatever it does with its vectors, it is something else)
            return False

    def _split(self, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Any other module: its part of the batch for each probe with that probe's weights, then joined."""
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        rows = next((len(value) for value in tensors if self._is_split(value)), 0) or self._flat_rows(tensors)
        if not rows:
            kind = type(module).__name__
            raise InputError(f"a {kind} takes no tensor whose first dimension is the batch; freeze its weights")
        outer, outputs = self._only, []
        for index in range(len(self._points)) if outer is None else [outer]:
            part = partial(self._part, rows, index if outer is None else 0)
            part_args, part_kwargs = pytree.tree_map(part, (args, kwargs))
            self._only = index  # for a unit inside this one
            try:
                with Displaced(self._weights, self._names, self._points, index):
                    outputs.append(forward(*part_args, **part_kwargs))
            finally:
                self._only = outer
        return pytree.tree_map(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs)

    @property
    def _count(self) -> int:
        """How many probes the rows at hand are of."""
        return len(self._points) if self._only is None else 1

    def _perturbed(self, tensor: Tensor, rows: Tensor | None = None) -> Tensor:
        """[points, *shape]"""
        name = self._names[tensor]
        if name not in self._small:
            if rows is None and self._only is None:
                return self._in_its_group(name)
            return self._weights.perturbed(name, self._points, rows, only=self._only)
        found = self._small[name] if self._only is None else self._small[name][self._only : self._only + 1]
        return found if rows is None else found[:, rows]

    def _in_its_group(self, name: str) -> Tensor:
        """A whole tensor at all points; with it, small ones that come next."""
        if self._watch is not None:
            self._used.append(name)
        elif len(self._used) > _YOUNG and name == self._used[_YOUNG]:
            self._early()
        if name not in self._groups:
            return self._weights.perturbed(name, self._points)
        if name not in self._ready:
            self._ready |= self._weights.perturbed_together(self._groups[name], self._points)
        return self._ready.pop(name)

    def _moves(self, tensor: Tensor) -> bool:
        return self._moving and tensor in self._names

    def _part(self, rows: int, index: int, value: Any) -> Any:
        split = isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows
        return value.chunk(self._count)[index] if split else value

    def _flat_rows(self, tensors: Sequence[Tensor]) -> int:
        """The first dimension where a model has joined examples and tokens into one, as OPT and experts do; or 0."""
        rows = len(tensors[0]) if tensors and tensors[0].dim() > 1 else 0
        return 0 if rows % (self._count * self._examples) else rows

    def _is_split(self, value: Any) -> bool:
        """Whether a tensor's first dimension runs over the probes' examples."""
        return isinstance(value, Tensor) and value.dim() > 0 and len(value) == self._count * self._examples

    def _check_split(self, value: Tensor) -> None:
        if not self._is_split(value):
            rows = self._count * self._examples
            raise InputError(f"a tensor of shape {tuple(value.shape)} does not begin with the batch of {rows} rows")

    def _is_shared(self, value: Tensor) -> bool:
        """Whether a tensor is one for all examples, such as positions of shape [1, tokens] or [tokens]."""
        return value.dim() == 1 or (len(value) == 1 and self._count * self._examples > 1)

    def _spread(self, value: Tensor) -> Tensor:
        """The tensor with a row for each probe's examples; one whose first dimension is something else is refused."""
        if not self._is_shared(value):
            if not (value.dim() == 2 and self._flat_rows([value])):
                self._check_split(value)
            return value
        rows = self._count * self._examples
        return value.expand(rows, -1) if value.dim() == 1 else value.expand(rows, *value.shape[1:])


def _at_once(module: nn.Module, forward: Forward, x: Tensor, vectors: Mapping[str, Tensor]) -> Tensor:
    """A module's forward over the rows of several probes, probe-major, with their vectors [probes, width]."""
    with holding(module, {key: tensor[:, None] for key, tensor in vectors.items()}):
        y: Tensor = forward(x.reshape(len(next(iter(vectors.values()))), -1, x.shape[-1]))
    return y.view(x.shape)


def _is_close(one: Tensor, other: Tensor) -> bool:
    limit = 1e-2 if other.dtype == torch.bfloat16 else 1e-5
    return one.shape == other.shape and bool((one - other).abs().max() <= limit * (1 + other.abs().max()))

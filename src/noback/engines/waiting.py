"""Values that wait for their use: on a GPU, what uses a tensor first may make it in its own launch.

A norm adds what it norms, a product ends with its ReLU, and attention takes a factor of its queries into its own scale.
Everything else that touches a waiting tensor is given its values, made the plain way at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
# What is seen of a waiting tensor waits too; a reshape only where it is a view.
_VIEWS = {
    _aten.view.default: _aten.view.default,
    _aten.reshape.default: _aten.view.default,
    _aten.transpose.int: _aten.transpose.int,
}
_SUMS = {Tensor.__add__, Tensor.__radd__, Tensor.add, torch.add}
# Functions that need memory to be there.
_RAW = {
    "data_ptr", "untyped_storage", "storage", "_typed_storage", "numpy", "tolist", "__array__", "__dlpack__", "__set__",
    "__deepcopy__", "__reduce_ex__",
}  # fmt: skip
_MULTIPLES = {Tensor.__mul__, Tensor.__rmul__, Tensor.mul, torch.mul}


class Later:
    """Values that are made once, when they are asked for, and are packed then."""

    def __init__(self, shape: torch.Size, like: Tensor) -> None:
        self._like = torch.empty(shape, dtype=like.dtype, device="meta")
        self._device = like.device
        self._value: Tensor | None = None
        self._told: Callable[[], object] | None = None  # called when the values are made

    @property
    def is_open(self) -> bool:
        """Whether there are no values yet."""
        return self._value is None

    def value(self) -> Tensor:
        """The values."""
        if self._value is None:
            with torch._C.DisableTorchFunction():
                self.give(self._made())
            if self._told is not None:
                self._told()
        assert self._value is not None
        return self._value

    def give(self, value: Tensor) -> None:
        """These are the values; what they are made of is let go."""
        self._value = value.view(self._like.shape)
        self._let_go()

    def waiting(self) -> Waiting:
        """A tensor that stands for them."""
        return Waiting(self, self._like, self._device)

    def _made(self) -> Tensor:
        raise NotImplementedError

    def _let_go(self) -> None:
        raise NotImplementedError


class Sum(Later):
    """Of two packed tensors of one shape."""

    def __init__(self, one: Tensor, other: Tensor) -> None:
        super().__init__(one.shape, one)
        self.parts: tuple[Tensor, ...] = one, other

    def tell(self, told: Callable[[], object]) -> None:
        """Call this when the sum itself is made; the first who asks is told."""
        self._told = self._told or told

    def _made(self) -> Tensor:
        return torch.add(*self.parts)

    def _let_go(self) -> None:
        self.parts = ()


class Scaled(Later):
    """A tensor times a power of two, which rounds nothing: it may be done later, or to what is made of the tensor."""

    def __init__(self, base: Tensor, factor: float) -> None:
        super().__init__(base.shape, base)
        self.parts: tuple[Tensor, ...] = (base,)
        self.factor = factor

    def _made(self) -> Tensor:
        return self.parts[0] * self.factor

    def _let_go(self) -> None:
        self.parts = ()


class Product(Later):
    """What a function gives that can end with ReLU."""

    def __init__(
        self, make: Callable[..., Tensor], shape: torch.Size, like: Tensor, told: Callable[[], object]
    ) -> None:
        """`make` is asked for `relu=True` or nothing; `told` is called when it is ReLU."""
        super().__init__(shape, like)
        self._make: Callable[..., Tensor] | None = make
        self._rectifies = told

    def rectified(self) -> Tensor:
        """Its ReLU; the values themselves can still be made."""
        assert self._make is not None
        self._rectifies()
        with torch._C.DisableTorchFunction():
            return self._make(relu=True).view(self._like.shape)

    def _made(self) -> Tensor:
        assert self._make is not None
        return self._make()

    def _let_go(self) -> None:
        self._make = None


class Waiting(Tensor):
    """A tensor, or a view of one, whose values are made when something reads them."""

    later: Later
    _views: tuple[Callable[[Tensor], Tensor], ...]
    _like: Tensor
    _seen: Tensor | None

    @staticmethod
    def __new__(
        cls: type[Waiting], later: Later, like: Tensor, device: torch.device, *views: Callable[[Tensor], Tensor]
    ) -> Waiting:
        """Shaped as `like`."""
        made: Waiting = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        made.later, made._views, made._like, made._seen = later, views, like, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first, rest = args[0] if args else None, args[1:]
        if isinstance(first, Waiting) and first.later.is_open and not kwargs:
            if func in _VIEWS and isinstance(first.later, Sum | Scaled):
                view = first._viewed(lambda tensor: _VIEWS[func](tensor, *rest))
                if view is not None:
                    return view
            if func is _aten.relu.default and isinstance(first.later, Product):
                return first.later.rectified()
        args, kwargs = pytree.tree_map_only(Waiting, settled, (args, dict(kwargs or {})))
        found = func(*args, **kwargs)
        if isinstance(first, Waiting):
            seen = first.value()
            if seen.shape != first.shape or seen.stride() != first.stride():
                raise NotImplementedError(f"{func} gave a waiting tensor another shape")
        return found

    def value(self) -> Tensor:
        """Its values."""
        if self._seen is None:
            with torch._C.DisableTorchFunction():
                self._seen = self._of(self.later.value())
        return self._seen

    def parts(self) -> tuple[Tensor, ...]:
        """What it is made of, seen as it is seen: of a sum two tensors, of a scaled tensor one."""
        assert isinstance(self.later, Sum | Scaled)
        with torch._C.DisableTorchFunction():
            return tuple(map(self._of, self.later.parts))

    def _of(self, tensor: Tensor) -> Tensor:
        for view in self._views:
            tensor = view(tensor)
        return tensor

    def _viewed(self, view: Callable[[Tensor], Tensor]) -> Waiting | None:
        """A view of it; none where what it is made of cannot be seen that way."""
        with torch._C.DisableTorchFunction():
            try:
                for part in self.parts():
                    view(part)
                return Waiting(self.later, view(self._like), self.device, *self._views, view)
            except RuntimeError:
                return None


class Deferring(TorchFunctionMode):
    """While active, sums of tensors and multiples by powers of two wait for their use."""

    def __init__(self) -> None:
        super().__init__()
        self._open: WeakSet[Later] = WeakSet()

    def wait(self, later: Later) -> Waiting:
        """A tensor that stands for these values, which are made before anything is written in place."""
        self._open.add(later)
        return later.waiting()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if len(args) == 2 and not kwargs:
            if func in _SUMS and _can_add(*args):
                return self.wait(Sum(settled(args[0]), settled(args[1])))
            if func in _MULTIPLES and _is_exact(*args):
                return self.wait(Scaled(settled(args[0]), args[1]))
        raw = getattr(func, "__name__", "") in _RAW
        if raw or _writes(func, args, kwargs):  # perhaps to what values are made of
            for later in list(self._open):
                later.value()
        if raw:
            args = tuple(map(settled, args))
        return func(*args, **kwargs)


def settled(value: Any) -> Any:
    """A waiting tensor's values; anything else as it is."""
    return value.value() if isinstance(value, Waiting) else value


def sum_of(value: Tensor) -> Sum | None:
    """The sum that a tensor waits for."""
    later = value.later if isinstance(value, Waiting) else None
    return later if isinstance(later, Sum) and later.is_open else None


def unscaled(query: Tensor) -> tuple[Tensor, float]:
    """A tensor and the factor by which it is still to be multiplied."""
    if isinstance(query, Waiting) and isinstance(query.later, Scaled) and query.later.is_open:
        return query.parts()[0], query.later.factor
    return settled(query), 1.0


def taking_values(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a forward that reads what it is given."""
    return partial(_taking_values, forward)


def _taking_values(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map_only(Waiting, settled, (args, kwargs))
    return forward(*args, **kwargs)


def _can_wait(value: Any) -> bool:
    """Whether a value is a plain tensor of numbers with a fraction, and not one within a function that is mapped."""
    if type(value) not in (Tensor, nn.Parameter, Waiting) or torch._C._functorch.maybe_current_level() is not None:
        return False
    numbers = value.layout is torch.strided and value.is_floating_point() and value.dim() > 1
    return numbers and not value.is_nested


def _can_add(one: Any, other: Any) -> bool:
    if not (_can_wait(one) and _can_wait(other)):
        return False
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return bool(alike and one.is_contiguous() and other.is_contiguous())


def _is_exact(one: Any, factor: Any) -> bool:
    """Whether a multiple is by a power of two, and packed."""
    if not (_can_wait(one) and isinstance(factor, float) and 0 < factor < math.inf and math.frexp(factor)[0] == 0.5):
        return False
    strides = [stride for stride, size in zip(one.stride(), one.shape, strict=True) if size != 1]
    return 0 not in strides and strides == sorted(strides, reverse=True)


def _writes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function may write to a tensor that it is given: by its name, or because it is told to."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        return any(_writes(getattr(func, one), args, kwargs) for one in func.overloads())  # type: ignore[no-untyped-call]
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    asked = kwargs.get("out") is not None or kwargs.get("inplace") or any(value is True for value in args)
    return in_place or name.startswith("__i") or name == "__setitem__" or bool(asked)

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
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.transpose.int}
_SUMS = {Tensor.__add__, Tensor.__radd__, Tensor.add, torch.add}
_RAW = {"data_ptr", "numpy", "tolist", "untyped_storage", "__array__", "__dlpack__"}  # of memory that must be there
_MULTIPLES = {Tensor.__mul__, Tensor.__rmul__, Tensor.mul, torch.mul}


class Later:
    """Values that are made once, when they are asked for."""

    def __init__(self, shape: torch.Size, like: Tensor, told: Callable[[], object] = lambda: None) -> None:
        """`told` is called when the values are made."""
        self._like = torch.empty(shape, dtype=like.dtype, device="meta")
        self._device, self._told = like.device, told
        self._value: Tensor | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are no values yet."""
        return self._value is None

    def value(self) -> Tensor:
        """The values."""
        if self._value is None:
            with torch._C.DisableTorchFunction():
                self.give(self._made())
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
    """Of two tensors that are packed alike."""

    def __init__(self, one: Tensor, other: Tensor) -> None:
        super().__init__(one.shape, one)
        self.parts: tuple[Tensor, ...] = one, other

    def tell(self, told: Callable[[], object]) -> None:
        """Call this when the sum itself is made."""
        self._told = told

    def _made(self) -> Tensor:
        return torch.add(*self.parts)

    def _let_go(self) -> None:
        self.parts = ()


class Scaled(Later):
    """A tensor times a power of two: it can be multiplied earlier or later, to the same bits."""

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
                view = first._viewed(lambda tensor: func(tensor, *rest))
                if view is not None:
                    return view
            if func is _aten.relu.default and isinstance(first.later, Product):
                return first.later.rectified()
        args, kwargs = pytree.tree_map_only(Waiting, settled, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

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
        if _writes(func, args, kwargs):  # perhaps to what values are made of
            for later in list(self._open):
                later.value()
        if getattr(func, "__name__", "") in _RAW:
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


def _can_add(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.is_floating_point()):
        return False
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and one.is_contiguous() and other.is_contiguous() and one.dim() > 1


def _is_exact(one: Any, factor: Any) -> bool:
    known = isinstance(one, Tensor) and one.is_floating_point() and isinstance(factor, float)
    return known and 0 < factor < math.inf and math.frexp(factor)[0] == 0.5


def _writes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function may write to a tensor that it is given: by its name, or because it is told to."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    asked = kwargs.get("out") is not None or kwargs.get("inplace") or any(value is True for value in args)
    return in_place or name.startswith("__i") or name == "__setitem__" or bool(asked)

"""One perturbed point for any PyTorch code: whatever function uses a tuned tensor sees it there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from noback.values import Move
from noback.weights import Weights

# Functions that read a tensor's shape or kind, not its values.
_SHAPE_ONLY = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "get_device", "data_ptr", "__len__", "__hash__", "requires_grad_",
    "untyped_storage",
}  # fmt: skip
# Properties that do give values.
_VALUED = {"T", "mT", "H", "mH", "data", "real"}


class TensorNames:
    """Finds the name of a tuned tensor by the tensor object that the model holds."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], weights: Weights) -> None:
        self._known = [(name, tensor) for name, tensor in parameters if name in weights.names]
        self._names = {id(tensor): name for name, tensor in self._known}

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._names

    def __getitem__(self, tensor: Tensor) -> str:
        return self._names[id(tensor)]


class Perturbed(TorchFunctionMode):
    """While active, torch functions see each tuned tensor at the point; a tensor is formed, used and dropped."""

    def __init__(self, weights: Weights, names: TensorNames, points: Sequence[Move], index: int = 0) -> None:
        """The point is `points[index]`: the others let a captured forward find it where it finds all of them."""
        super().__init__()
        self._weights, self._names, self._points, self._index = weights, names, points, index

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if reads_shape_only(func):
            return func(*args, **kwargs)
        if func is F.embedding and len(args) >= 2 and args[1] in self._names:
            norm = kwargs.get("max_norm", args[3] if len(args) > 3 else None)
            if norm is None:
                return self._embedding(args[0], args[1])
        args, kwargs = pytree.tree_map(self._seen, (args, dict(kwargs)))
        return func(*args, **kwargs)

    def _seen(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value in self._names:
            return self._weights.perturbed(self._names[value], self._points, only=self._index)[0]
        return value

    def _embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Only the rows that are used; padding and gradients play no part in a forward."""
        return self._weights.looked_up(self._names[weight], self._points, ids, only=self._index)


class Watch(TorchFunctionMode):
    """While active, notes the tuned tensors that functions use as they stand."""

    def __init__(self, names: TensorNames) -> None:
        super().__init__()
        self._names = names
        self.seen: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not reads_shape_only(func):
            for value in pytree.tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and value in self._names:
                    self.seen.add(self._names[value])
        return func(*args, **kwargs)


def reads_shape_only(func: Callable[..., Any]) -> bool:
    """Whether the function reads a tensor's shape or kind only."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") not in _VALUED
    return name in _SHAPE_ONLY


@contextmanager
def materialised(model: nn.Module, weights: Weights, names: TensorNames, point: Move) -> Iterator[None]:
    """Within, the model's modules hold their tuned tensors at the point, each formed once; then they hold their own.

    Many forwards at one point cost one sweep over the noise, and a second copy of what is tuned.
    """
    formed = {name: weights.perturbed(name, [point])[0] for name in weights.names}
    tables = [module._parameters for module in model.modules()]
    held = [(table, key, tensor) for table in tables for key, tensor in table.items() if tensor in names]
    shown: Any = formed  # a tensor stands in for a parameter, also where modules share it
    try:
        for table, key, tensor in held:
            table[key] = shown[names[tensor]]  # type: ignore[index]
        yield
    finally:
        for table, key, tensor in held:
            table[key] = tensor

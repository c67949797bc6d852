"""What is asked of a module, and what may stand in for its forward and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

from torch import Tensor, nn

Forward = Callable[..., Any]
M = TypeVar("M", bound=nn.Module)


def is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Whether a module is a `kind` that computes what the kind computes, and nothing of its own."""
    return isinstance(module, kind) and type(module).forward is kind.forward and "forward" not in module.__dict__


def own_tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a module holds itself."""
    return {key: tensor for key, tensor in module._parameters.items() if tensor is not None}


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """What a layer is given or gives with each value changed, also those in lists, tuples and dictionaries.

    Torch's own trees know more kinds and take eight times as long.
    """
    if type(value) in (tuple, list):
        return type(value)([mapped(change, part) for part in value])
    if type(value) is dict:
        return {key: mapped(change, part) for key, part in value.items()}
    return change(value)


@contextmanager
def holding(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the instance hold other tensors of these names, and give it its own back."""
    own: dict[str, Any] = own_tensors(module)
    table: dict[str, Any] = module._parameters
    try:
        table.update(tensors)
        yield
    finally:
        table.update(own)


@contextmanager
def replaced_forward(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Let the instance answer with another `forward`, and put things back as they were."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before

"""Units: the modules that own tuned tensors, their kinds, and what may stand in for their forward and their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from noback.engines.displaced import TensorNames

Forward = Callable[..., Any]
M = TypeVar("M", bound=nn.Module)


def units(module: nn.Module, names: TensorNames) -> Iterator[nn.Module]:
    """The topmost modules that own a tuned tensor themselves."""
    seen: set[int] = set()

    def walk(part: nn.Module) -> Iterator[nn.Module]:
        if id(part) in seen:
            return
        seen.add(id(part))
        tuned = part._parameters.values() if not is_lora(part) else part.parameters()
        if any(tensor is not None and tensor in names for tensor in tuned):
            yield part
            return
        for child in part.children():
            yield from walk(child)

    return walk(module)


def is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Whether a module is a `kind` that computes what the kind computes, and nothing of its own."""
    return isinstance(module, kind) and type(module).forward is kind.forward and "forward" not in module.__dict__


def is_scaling(module: nn.Module) -> bool:
    """Whether a module has vectors of one width and nothing below it, as the norms that models bring along do."""
    vectors = own_tensors(module).values()
    return (
        all(one.dim() == 1 for one in vectors) and len({len(one) for one in vectors}) == 1 and not [*module.children()]
    )


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D, by its name: that library has its own room."""
    kind = type(module)
    known = kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
    return known and "forward" not in module.__dict__


def is_lora(module: nn.Module) -> bool:
    """Whether a module is PEFT's LoRA over a plain float32 linear on a CPU, with one adapter and nothing else.

    In bfloat16 a sum of the weight and B A would round most of B A away, and on a GPU one product with the frozen
    weight for all probes is faster: there PEFT's own forward runs.
    """
    base = getattr(module, "base_layer", None)
    if not (isinstance(base, nn.Linear) and is_plain(base, nn.Linear) and base.weight.dtype == torch.float32):
        return False
    if base.weight.device.type != "cpu":
        return False
    if type(base.weight) is not nn.Parameter:  # a quantised tensor, which knows the products of a linear only
        return False
    names = ("lora_A", "lora_B", "lora_dropout", "scaling", "lora_magnitude_vector", "merged_adapters")
    if not all(hasattr(module, name) for name in names) or "forward" in module.__dict__:
        return False
    parts = {name: getattr(module, name) for name in names}
    alone = all(list(parts[name]) == ["default"] for name in ("lora_A", "lora_B", "lora_dropout", "scaling"))
    idle = not parts["lora_magnitude_vector"] and not parts["merged_adapters"]
    return alone and idle and isinstance(parts["lora_dropout"]["default"], nn.Identity)


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

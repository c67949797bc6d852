"""The model under an adapter: which bytes name it, and whether its weights are quantised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from noback.errors import InputError


def floating(model: Any) -> dict[str, Tensor]:
    """Every floating-point parameter by its name."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.is_floating_point()}


def base_tensors(model: Any) -> dict[str, Tensor]:
    """What names a base: its floating-point parameters, or the bytes of all that a quantised one stores."""
    if not is_quantised(model):
        return floating(model)
    return {part: _bytes(tensor) for name, whole in model.state_dict().items() for part, tensor in _parts(name, whole)}


def is_quantised(model: Any) -> bool:
    """Whether transformers loaded or made the model with quantised weights."""
    return bool(getattr(model, "is_quantized", False))


def refuse_quantised(kind: str) -> None:
    """An adapter that tunes the model's own weights has nothing to move in a quantised one."""
    raise InputError(
        f"adapter {kind!r} tunes the model's own weights and these are quantised, so a small move has no place in "
        "them; expected adapter lora or prefix: use --adapter lora, or a model that is not quantised"
    )


def _parts(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a tensor is made of: some libraries pack numbers and scales into one object."""
    if not isinstance(tensor, Tensor):
        return
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{part}", getattr(tensor, part))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)

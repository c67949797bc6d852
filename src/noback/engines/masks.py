"""Attention masks made additive once a forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_HELD = 4  # masks: a model has one a kind of layer, or one a layer, which is used once


class AdditiveMasks(TorchFunctionMode):
    """While active, a yes-or-no mask becomes 0 and minus infinity the first time that a layer's attention is given it.

    PyTorch does the same to it in every layer, in three launches.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[object, tuple[Tensor, Tensor]] = {}  # with the mask itself: its memory is not used again

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, mask = args[0] if args else kwargs["query"], kwargs.get("attn_mask")
            if mask is not None and mask.dtype == torch.bool:
                kwargs = {**kwargs, "attn_mask": self._additive(mask, query.dtype)}
        return func(*args, **kwargs)

    def _additive(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        key = mask.data_ptr(), mask.shape, mask.stride(), dtype
        if key not in self._made:
            if len(self._made) == _HELD:
                self._made.pop(next(iter(self._made)))
            made = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
            self._made[key] = mask, made
        return self._made[key][1]

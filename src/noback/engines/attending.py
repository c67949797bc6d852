"""Attention in a GPU's forward: short rows in a kernel of their own, and masks made additive once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from noback.directions.on_gpu import why_no_triton

_HELD = 4  # masks: a model has one a kind of layer, or one a layer, which is used once
_KNOWN = {"attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"}
_masking = Lock()
_within: list[Any] = []  # how transformers asks, then one for each forward of any thread
_RUNS: dict[object, bool] = {}  # kinds of rows, and whether the kernel for short ones takes them on this machine


class Attending(TorchFunctionMode):
    """While active, a yes-or-no mask becomes 0 and minus infinity the first time that a layer's attention is given it.

    PyTorch does the same to it in every layer, in three launches. Rows that are short go to a kernel that does not pad
    them to long tiles.
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
            if (
                len(args) == 3
                and set(kwargs) <= _KNOWN
                and not kwargs.get("dropout_p")
                and not kwargs.get("enable_gqa")
            ):
                return _attended(args, kwargs)
        return func(*args, **kwargs)

    def _additive(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        with torch._C.DisableTorchFunction():
            key = mask.data_ptr(), mask.shape, mask.stride(), dtype
            if key not in self._made:
                if len(self._made) == _HELD:
                    self._made.pop(next(iter(self._made)))
                made = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
                self._made[key] = mask, made
            return self._made[key][1]


@contextmanager
def masked_as_captured() -> Iterator[None]:
    """Within, transformers makes the masks of a captured forward, which cannot look whether any row is padded.

    It leaves a mask that hides nothing out where it can, and attention without a mask may round otherwise: a plain
    forward is to give the bits of a captured one.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    if not hasattr(masking, "is_tracing"):
        yield
        return
    with _masking:
        if not _within:
            _within.append(masking.is_tracing)
            masking.is_tracing = lambda *_, **__: True
        _within.append(None)
    try:
        yield
    finally:
        with _masking:
            _within.pop()
            if len(_within) == 1:
                masking.is_tracing = _within.pop()


def _attended(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    query, key, value = args
    mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.is_cuda and why_no_triton() is None:
        from noback.engines.attention_triton import attention, can_attend

        if can_attend(query, key, value, mask):
            attend = partial(attention, query, key, value, scale=scale, causal=bool(kwargs.get("is_causal")))
            with torch._C.DisableTorchFunction():
                if _runs(query, mask, attend):
                    return attend(mask)
    return F.scaled_dot_product_attention(query, key, value, **{**kwargs, "scale": scale})


def _runs(query: Tensor, mask: Tensor | None, attend: partial[Tensor]) -> bool:
    """Whether the kernel was seen to compile and run on the GPU for tensors of a kind."""
    kind = query.device, query.dtype, query.shape[2:], mask is None, attend.keywords["causal"]
    if kind not in _RUNS:
        if torch.cuda.is_current_stream_capturing():
            return False
        try:
            attend(mask)
            _RUNS[kind] = True
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 (a kernel that this GPU cannot run shows itself in many ways)
            _RUNS[kind] = False
    return _RUNS[kind]

"""Attention on a GPU: short rows go to a kernel that does not pad them to long tiles."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor

from noback.directions.backend import why_no_triton
from noback.engines.attention import Attention
from noback.engines.trust import Trust, near, output_tolerance

_UNKNOWN = ("position_bias", "softcap", "cache")  # options of the library that the kernel does not know


def short_rows(own: Attention, trust: Trust, kernel: Any = None) -> Attention:
    """A model's attention, by the kernel where it takes the rows and was seen to give what the model's own gives.

    `kernel` offers what `attention_triton` does, which is taken where it is none and Triton is here.
    """
    if kernel is None and why_no_triton() is not None:
        return own
    if kernel is None:
        from noback.engines.cuda import attention_triton as kernel

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        torchs = partial(own, module, query, key, value, mask, **options)
        unknown = options.get("dropout") or any(options.get(name) is not None for name in _UNKNOWN)
        if unknown or not kernel.can_attend(query, query, query, mask):
            return torchs()
        groups = getattr(module, "num_key_value_groups", 1)
        keys, values = _repeated(key, groups), _repeated(value, groups)
        if not kernel.can_attend(query, keys, values, mask):
            return torchs()
        causal = options.get("is_causal")
        causal = mask is None and bool(getattr(module, "is_causal", True) if causal is None else causal)
        scale = options.get("scaling")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale

        def attend() -> Tensor:
            found: Tensor = kernel.attention(query, keys, values, mask, scale=scale, causal=causal)
            return found.transpose(1, 2)

        kind = "attention", query.device, query.dtype, query.shape[2:], mask is None, causal
        taken = trust.check(
            kind, attend, lambda: torchs()[0], _close, "attention over short rows is computed by torch on this GPU"
        )
        return (attend(), None) if taken else torchs()

    return attention


def _close(found: Tensor, expected: Tensor) -> bool:
    # The factors are rounded to bfloat16 or TF32, in either way.
    return near(found, expected, 5 * output_tolerance(expected.bfloat16()))


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Keys or values of a group of heads as those of each head: [rows, heads, tokens, width]."""
    if times == 1:
        return tensor
    rows, heads, tokens, width = tensor.shape
    return tensor[:, :, None].expand(rows, heads, times, tokens, width).reshape(rows, heads * times, tokens, width)

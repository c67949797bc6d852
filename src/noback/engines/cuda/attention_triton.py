"""Attention over short rows: a program holds a head's whole row, so that nothing is padded to a long tile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LONGEST = 64  # tokens: at 100 the kernels of torch are faster
_WIDTHS = (16, 32, 64, 128)


@triton.jit(do_not_specialize=["heads", "tokens", "scale"])
def _attention(
    query, key, value, mask, out, heads, tokens, scale,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token, m_row, m_head, m_query, m_key,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, WIDTH)[None, :]
    inside = (token < tokens)[:, None]
    queries = tl.load(query + row * q_row + head * q_head + token[:, None] * q_token + column, mask=inside, other=0.0)
    keys = tl.load(key + row * k_row + head * k_head + token[:, None] * k_token + column, mask=inside, other=0.0)
    values = tl.load(value + row * v_row + head * v_head + token[:, None] * v_token + column, mask=inside, other=0.0)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    seen = (token < tokens)[None, :]
    if MASKED:
        place = row * m_row + head * m_head + token[:, None] * m_query + token[None, :] * m_key
        scores += tl.load(mask + place, mask=inside & seen, other=0.0).to(tl.float32)
    if CAUSAL:
        seen = seen & (token[:, None] >= token[None, :])
    scores = tl.where(seen, scores, float("-inf"))
    largest = tl.max(scores, axis=1, keep_dims=True)
    shares = tl.exp(scores - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(shares, axis=1, keep_dims=True)
    found = tl.dot(shares.to(values.dtype), values, input_precision=PRECISION)
    found = found / tl.where(total == 0.0, 1.0, total)  # a token that sees nothing
    place = (row * tokens + token[:, None]) * heads + head
    tl.store(out + place * WIDTH + column, found.to(out.dtype.element_ty), mask=inside)


def can_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether `attention` takes these and is fast: short rows, of bfloat16 or with factors rounded to TF32."""
    alike = query.shape == key.shape == value.shape and query.dtype == key.dtype == value.dtype
    if not (alike and query.dim() == 4 and query.shape[2] <= _LONGEST and query.shape[3] in _WIDTHS):
        return False
    rounded = query.dtype == torch.bfloat16 or (query.dtype == torch.float32 and _is_tf32())
    packed = all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    return rounded and packed and (mask is None or (mask.dim() == 4 and mask.dtype == query.dtype))


def _is_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, causal: bool) -> Tensor:
    """As torch's scaled_dot_product_attention for [rows, heads, tokens, width] and an additive mask."""
    rows, heads, tokens, width = query.shape
    out = torch.empty((rows, tokens, heads, width), dtype=query.dtype, device=query.device)
    masked = mask is not None
    given = query if mask is None else mask.expand(rows, heads, tokens, tokens)
    block = max(triton.next_power_of_2(tokens), 16)
    _attention[(rows * heads,)](
        query, key, value, given, out, heads, tokens, scale,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *given.stride(), MASKED=masked, CAUSAL=causal,
        TOKENS=block, WIDTH=width, PRECISION="tf32" if _is_tf32() else "ieee", num_warps=4,
    )  # fmt: skip
    return out.transpose(1, 2)

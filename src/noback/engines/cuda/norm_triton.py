"""A layer norm whose rows come from several probes, each with its own scale and shift, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 4096  # of a program, at least a row


@triton.jit(do_not_specialize=["rows", "a_probe", "scales", "shifts", "eps"])
def _layer_norm(
    x, out, scale, shift, rows, a_probe, scales, shifts, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SHIFTED: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < WIDTH)
    place = row.to(tl.int64) * WIDTH + column
    probe = (row // a_probe).to(tl.int64)
    if ALIGNED:  # else the scales would be loaded one by one
        scales = scales // 16 * 16
        shifts = shifts // 16 * 16
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(scale + probe * scales + column, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, axis=1, keep_dims=True) / WIDTH, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / WIDTH
    normed = centred * tl.rsqrt(variance + eps) * weight
    if SHIFTED:
        normed += tl.load(shift + probe * shifts + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor | None, eps: float) -> Tensor:
    """The rows of `x` [probes x rows, ..., width], probe-major, by `scale` and `shift` [probes, width]."""
    width, x = x.shape[-1], x.contiguous()
    out = torch.empty_like(x)
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    together = max(_ELEMENTS // block, 1)
    strides = scale.stride(0), 0 if shift is None else shift.stride(0)
    _layer_norm[(triton.cdiv(rows, together),)](
        x, out, scale, scale if shift is None else shift, rows, rows // len(scale), *strides, eps, WIDTH=width,
        ROWS=together, BLOCK=block, SHIFTED=shift is not None, ALIGNED=all(stride % 16 == 0 for stride in strides),
        num_warps=max(block // 2048, 4),
    )  # fmt: skip
    return out

"""What thin products add to the outputs of a linear, for many probes in one launch: bias + (x b) a."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 4  # of a program: the signs are read once for so many
_BLOCK = 1024  # columns at a time


@triton.jit(do_not_specialize=["rows"])
def _branch(
    x, of_inputs, of_outputs, bias, out, rows, inputs, outputs, biases,
    SHIFTED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(rows, ROWS)
    probe = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    line = (probe * rows + row)[:, None]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, inputs, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < inputs
        value = tl.load(x + line * inputs + column[None, :], mask=there & inside[None, :], other=0.0).to(tl.float32)
        total += value * tl.load(of_inputs + probe * inputs + column, mask=inside, other=0.0)[None, :]
    inner = tl.sum(total, axis=1, keep_dims=True)
    for begin in range(0, outputs, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < outputs
        value = inner * tl.load(of_outputs + probe * outputs + column, mask=inside, other=0.0)[None, :]
        if SHIFTED:
            value += tl.load(bias + probe * biases + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        tl.store(out + line * outputs + column[None, :], value.to(out.dtype.element_ty), mask=there & inside[None, :])


def branch(x: Tensor, of_inputs: Tensor, of_outputs: Tensor, bias: Tensor | None) -> Tensor:
    """X [probes, rows, in] by one product a probe, plus bias [probes, 1, out]: [probes, rows, out].

    The products are float32 [probes, 1, in] and [probes, 1, out], and so is what lies between.
    """
    (probes, rows, inputs), outputs, x = x.shape, of_outputs.shape[-1], x.contiguous()
    if bias is not None and bias.stride(-1) != 1:
        bias = bias.contiguous()
    out = torch.empty((probes, rows, outputs), dtype=x.dtype, device=x.device)
    together = min(_ROWS, triton.next_power_of_2(rows))
    _branch[(probes * triton.cdiv(rows, together),)](
        x, of_inputs, of_outputs, x if bias is None else bias, out, rows, inputs, outputs,
        0 if bias is None else bias.stride(0), SHIFTED=bias is not None, ROWS=together,
        BLOCK=min(_BLOCK, triton.next_power_of_2(max(inputs, outputs))), num_warps=4,
    )  # fmt: skip
    return out

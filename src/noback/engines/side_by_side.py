"""Products and layer norms of several probes, each with its own weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.directions.on_gpu import why_no_triton

_WIDEST = 16384  # columns that a program of the fast norm holds


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X [probes, rows, in] by weight [probes, out, in] plus bias [probes, 1, out].

    A product a probe, its bias fused, is faster than one batched product and an addition.
    """
    with torch._C.DisableTorchFunction():
        y = x.new_empty((len(x), x.shape[1], weight.shape[1]))
        for index in range(len(x)):
            if bias is None:
                torch.mm(x[index], weight[index].t(), out=y[index])
            else:
                torch.addmm(bias[index, 0], x[index], weight[index].t(), out=y[index])
        return y


def layer_norm(module: nn.LayerNorm, x: Tensor, weight: Tensor | None, bias: Tensor | None, probes: int) -> Tensor:
    """Each probe's rows of x with its own scale and shift [probes, width]: in one launch on a GPU, else one by one."""
    if weight is not None and _is_fast(x, weight):
        from noback.engines.norm_triton import layer_norm as in_one_launch

        with torch._C.DisableTorchFunction():
            return in_one_launch(x, weight, bias, module.eps)
    shape, parts, absent = list(module.normalized_shape), x.chunk(probes), [None] * probes
    vectors = zip(parts, absent if weight is None else weight, absent if bias is None else bias, strict=True)
    return torch.cat([F.layer_norm(part, shape, scale, shift, module.eps) for part, scale, shift in vectors])


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether one launch can norm the rows of all probes: weight [probes, width] of the rows' own type."""
    known = x.is_cuda and weight.dim() == 2 and weight.stride(1) == 1 and x.dtype == weight.dtype
    return known and weight.shape[1] <= _WIDEST and why_no_triton() is None

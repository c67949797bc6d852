"""Products and layer norms of several probes, each with its own weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.directions.on_gpu import why_no_triton
from noback.engines.waiting import Waiting, settled, sum_of

_WIDEST = 16384  # columns that a program of the fast norm holds


def products(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """X [probes, rows, in] by weight [probes, out, in] plus bias [probes, 1, out], and ReLU of that where it is asked.

    A product a probe, its bias fused, is faster than one batched product and an addition.
    """
    with torch._C.DisableTorchFunction():  # what is written here is new: no waiting value depends on it
        y = x.new_empty((len(x), x.shape[1], weight.shape[1]))
        for index in range(len(x)):
            if bias is None:
                torch.mm(x[index], weight[index].t(), out=y[index])
            else:
                product = torch._addmm_activation if relu else torch.addmm
                product(bias[index, 0], x[index], weight[index].t(), out=y[index])
        return y.relu_() if relu and bias is None else y


def layer_norm(
    module: nn.LayerNorm, x: Tensor, weight: Tensor | None, bias: Tensor | None, probes: int, *, keep: bool
) -> Tensor:
    """Each probe's rows of x with its own scale and shift [probes, width]; `keep` the sum that x may wait for.

    In one launch on a GPU, else probe by probe.
    """
    if weight is not None and _is_fast(x, weight):
        from noback.engines.norm_triton import layer_norm as in_one_launch

        with torch._C.DisableTorchFunction():  # what is written here is new: no waiting value depends on it
            later = sum_of(x)
            parts = x.parts() if later is not None and isinstance(x, Waiting) else ()
            if later is None or not all(part.is_contiguous() for part in parts):
                return in_one_launch(settled(x), weight, bias, module.eps)
            total = torch.empty_like(parts[0]) if keep else None
            normed = in_one_launch(parts[0], weight, bias, module.eps, parts[1], total)
            if total is not None:
                later.give(total)
            return normed
    shape, parts, absent = list(module.normalized_shape), settled(x).chunk(probes), [None] * probes
    vectors = zip(parts, absent if weight is None else weight, absent if bias is None else bias, strict=True)
    return torch.cat([F.layer_norm(part, shape, scale, shift, module.eps) for part, scale, shift in vectors])


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether one launch can norm the rows of all probes: weight [probes, width] of the rows' own type."""
    known = x.is_cuda and weight.dim() == 2 and weight.stride(1) == 1 and x.dtype == weight.dtype
    return known and weight.shape[1] <= _WIDEST and why_no_triton() is None

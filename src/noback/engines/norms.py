"""A layer norm whose rows come from several probes: in one launch on a GPU, else probe by probe."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.directions.on_gpu import why_no_triton
from noback.engines.waiting import Sum, Waiting, settled

_WIDEST = 16384  # columns that a program of the fast norm holds


def layer_norm(
    module: nn.LayerNorm, x: Tensor, weight: Tensor | None, bias: Tensor | None, probes: int, *, keep: bool
) -> Tensor:
    """Each probe's rows of x with its own scale and shift [probes, width]; `keep` the sum that x may wait for."""
    if weight is not None and _is_fast(x, weight):
        from noback.engines.norm_triton import layer_norm as in_one_launch

        if not (isinstance(x, Waiting) and isinstance(x.later, Sum) and x.later.is_open):
            return in_one_launch(settled(x), weight, bias, module.eps)
        one, other = x.parts()
        total = torch.empty_like(one) if keep else None
        normed = in_one_launch(one, weight, bias, module.eps, other, total)
        if total is not None:
            x.later.give(total)
        return normed
    shape, parts, absent = list(module.normalized_shape), settled(x).chunk(probes), [None] * probes
    vectors = zip(parts, absent if weight is None else weight, absent if bias is None else bias, strict=True)
    return torch.cat([F.layer_norm(part, shape, scale, shift, module.eps) for part, scale, shift in vectors])


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether one launch can norm the rows of all probes: weight [probes, width] of the rows' own type."""
    known = x.is_cuda and weight.dim() == 2 and weight.stride(1) == 1 and x.dtype == weight.dtype
    return known and weight.shape[1] <= _WIDEST and why_no_triton() is None

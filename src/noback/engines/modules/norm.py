"""Layer norms: each probe's rows with its own scale and shift, on a GPU in one launch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.directions.backend import why_no_triton
from noback.engines.modules.kinds import Forward, is_plain
from noback.engines.modules.probes import Probes

_WIDEST = 16384  # columns that a program of the fast norm holds


def is_layer_norm(module: nn.Module) -> bool:
    """Whether a module is torch's layer norm."""
    return is_plain(module, nn.LayerNorm)


def layer_norm(probes: Probes, module: nn.LayerNorm, _forward: Forward, x: Tensor) -> Tensor:
    """The same for each probe's part of the batch."""
    x = probes.spread(x)
    weight, bias = (None if part is None else probes.values(part) for part in (module.weight, module.bias))
    if weight is not None and _is_fast(x, weight):
        from noback.engines.cuda.norm_triton import layer_norm as in_one_launch

        with torch._C.DisableTorchFunction():
            return in_one_launch(x, weight, bias, module.eps)
    if probes.groups > 1 and weight is not None and bias is not None:  # many probes of few rows
        normed = F.layer_norm(x, list(module.normalized_shape), eps=module.eps)
        width = weight[0].numel()
        rows = normed.view(probes.count, -1, width)
        y = torch.addcmul(bias.view(-1, 1, width), rows, weight.view(-1, 1, width))
        return y.view(x.shape)
    shape, absent = list(module.normalized_shape), [None] * probes.count
    vectors = (absent if part is None else part for part in (weight, bias))
    parts = zip(x.chunk(probes.count), *vectors, strict=True)
    return torch.cat([F.layer_norm(part, shape, scale, shift, module.eps) for part, scale, shift in parts])


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether one launch can norm the rows of all probes: weight [probes, width] of the rows' own type."""
    known = x.is_cuda and weight.dim() == 2 and weight.stride(1) == 1 and x.dtype == weight.dtype
    return known and weight.shape[1] <= _WIDEST and why_no_triton() is None

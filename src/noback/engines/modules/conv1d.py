"""GPT-2's linear, whose weight is [in, out]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noback.engines.modules.kinds import Forward
from noback.engines.modules.linear import products, thin_branch
from noback.engines.modules.probes import Probes


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D, by its name: that library is imported elsewhere."""
    kind = type(module)
    known = kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
    return known and "forward" not in module.__dict__


def conv1d(probes: Probes, module: Any, _forward: Forward, x: Tensor) -> Tensor:
    """The product for each probe, or one for all and a thin branch for each."""
    thin = probes.products(module.weight)
    if thin is not None:
        with torch._C.DisableTorchFunction():
            return thin_branch(probes.spread(x), module.weight, thin, probes.bias(module.bias))
    weight = probes.values(module.weight).transpose(1, 2)
    return products(probes, probes.spread(x), weight, probes.bias(module.bias))

"""PEFT's LoRA on a CPU: each probe's B A is added to the frozen weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.engines.modules.kinds import Forward, is_plain
from noback.engines.modules.linear import products
from noback.engines.modules.part import is_part, shifted
from noback.engines.modules.probes import Probes

_TABLES = ("lora_A", "lora_B", "lora_dropout", "scaling")  # by adapter
_IDLE = ("lora_magnitude_vector", "merged_adapters")


def is_lora(module: nn.Module) -> bool:
    """Whether a module is PEFT's LoRA over a float32 linear, or a part of one, on a CPU, with one adapter alone.

    In bfloat16 a sum of the weight and B A would round most of B A away, and on a GPU one product with the frozen
    weight for all probes is faster: there PEFT's own forward runs.
    """
    base = getattr(module, "base_layer", None)
    if not (isinstance(base, nn.Linear) and (is_plain(base, nn.Linear) or is_part(base))):
        return False
    if "forward" in module.__dict__:
        return False
    weight = base.weight  # of another type where it is quantised, which knows the products of a linear only
    if type(weight) is not nn.Parameter or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    if not all(hasattr(module, name) for name in _TABLES + _IDLE):
        return False
    parts: dict[str, Any] = {name: getattr(module, name) for name in _TABLES + _IDLE}
    alone = all(list(parts[name]) == ["default"] for name in _TABLES)
    idle = not any(parts[name] for name in _IDLE)
    return alone and idle and isinstance(parts["lora_dropout"]["default"], nn.Identity)


def lora(probes: Probes, module: Any, _forward: Forward, x: Tensor) -> Tensor:
    """One product a probe: to sum the weights costs less than a second pass over the activations.

    Where ranks have partial sums of it, they are added once, those of B A with the base's.
    """
    base, x = module.base_layer, probes.spread(x)
    down, up = (probes.values(matrix["default"].weight) for matrix in (module.lora_A, module.lora_B))
    bias = None if base.bias is None else base.bias.expand(probes.count, 1, -1)
    matrix = base.matrix(base.weight) if is_part(base) else base.weight
    own = None if is_part(base) else bias
    if probes.groups > 1:  # a sum for each of many probes would take their number of copies of the weight
        y = F.linear(x, matrix, None if own is None else base.bias)
        inner = torch.bmm(x.reshape(probes.count, -1, x.shape[-1]), down.transpose(1, 2))
        y.view(probes.count, -1, y.shape[-1]).baddbmm_(inner, up.transpose(1, 2), alpha=module.scaling["default"])
    else:
        frozen = matrix.expand(probes.count, -1, -1)
        y = products(probes, x, torch.baddbmm(frozen, up, down, alpha=module.scaling["default"]), own)
    return shifted(probes, base.summed(y), bias) if is_part(base) else y

"""Quantised bases: how a model is quantised when it is opened, and products that round the stored weights only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from noback.adapters import is_quantised
from noback.errors import InputError

# On the CPU, wherever the run goes: the quantised bits, which a journal names, are then the same everywhere.
_CPU = {"device_map": {"": "cpu"}}
QUANTISED: dict[str, dict[str, Any]] = {
    "int8": {"load_in_8bit": True},
    "int4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def quantisation(name: str | None) -> dict[str, Any]:
    """What transformers' `from_pretrained` is told to quantise a model as it opens it; none: nothing."""
    if name is None:
        return {}
    _bitsandbytes()
    import transformers

    return {"quantization_config": transformers.BitsAndBytesConfig(**QUANTISED[name]), **_CPU}


def quantised_by(config: Mapping[str, Any]) -> str | None:
    """The library that quantised a checkpoint, as its configuration says."""
    found = config.get("quantization_config")
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise InputError(f"'quantization_config' in the model's config.json is {str(found)[:100]!r}; expected a table")
    return str(found.get("quant_method") or "bitsandbytes")  # old files name no library


def prepare_quantised(model: Any) -> None:
    """Let a quantised model's linears multiply without rounding activations.

    The library's own int8 product rounds the activations too, and its int4 product does on CPUs with AVX512-BF16. A
    slope is a small difference of losses and drowns in that rounding.
    """
    if not is_quantised(model) or model.quantization_method != "bitsandbytes":
        return
    linears = _bitsandbytes().nn
    for module in model.modules():
        if isinstance(module, linears.Linear8bitLt):
            _bring_scales(module)
            module.forward = partial(_product_8bit, module)
        elif isinstance(module, linears.Linear4bit):
            module.forward = partial(_product_4bit, module)


def _bring_scales(module: Any) -> None:
    """Put the rows' scales where the weight is: a model that moves takes the weights' numbers along, and only these.

    Scales that came from the CPU in each forward could not be captured on a GPU.
    """
    for holder in (module.weight, module.state):
        if holder.SCB is not None:
            holder.SCB = holder.SCB.to(module.weight.device)
        if holder.CB is not None:  # a second name of the numbers, which holds on to where they were
            holder.CB = module.weight.data


def _product_8bit(module: Any, x: Tensor) -> Tensor:
    """Whole numbers to 127 are exact in any floating-point type, so the rows' scales come after the product."""
    scale = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
    y: Tensor = F.linear(x, module.weight.data.to(x.dtype)) * (scale / 127).to(x.device, x.dtype)
    return y if module.bias is None else y + module.bias


def _product_4bit(module: Any, x: Tensor) -> Tensor:
    weight = _bitsandbytes().functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    return F.linear(x, weight.to(x.dtype), module.bias)


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError:
        raise InputError("--quantise needs a library that is not here: pip install 'noback[quantised]'") from None
    return bitsandbytes

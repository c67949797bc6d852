"""Prefix tuning: a few keys and values that every token of every layer may attend to, and nothing else is tuned.

They are put in where a model of the Hugging Face kind computes attention, through the library's attention interface,
so masked and causal models of any architecture that uses it are served alike.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from noback.adapters.base import Adapter, model_limit
from noback.adapters.prefix_peft import Layers, save_for_peft
from noback.errors import InputError
from noback.json_text import json_text
from noback.options import option, whole

_NAME = "noback_prefix"  # of the attention function
_MOST_TOKENS = 2**16  # far more than any model has positions
_KEYS, _VALUES = "prefix_keys", "prefix_values"


@dataclass(frozen=True, slots=True)
class Prefix(Adapter):
    """Keys and values of `tokens` tokens in each layer, begun with those that real tokens have there."""

    kind: ClassVar[str] = "prefix"
    portable: ClassVar[bool] = False

    tokens: int = option(5, "tokens of the prefix")

    def __post_init__(self) -> None:
        whole("adapter.tokens", self.tokens, _MOST_TOKENS)

    def attach(self, model: Any, _fresh: Collection[str], seed: int) -> dict[str, Tensor]:
        """Give each attention module a prefix; real tokens are drawn from the vocabulary by the run's seed."""
        most = model_limit(model)
        if self.tokens > most:
            raise InputError(
                f"adapter.tokens is {self.tokens}; the model does not take more than {most} tokens: use fewer"
            )
        for tensor in model.parameters():
            tensor.requires_grad_(requires_grad=False)
        for module, (keys, values) in _activations(model, self.tokens, seed):
            module.register_parameter(_KEYS, nn.Parameter(keys, requires_grad=False))
            module.register_parameter(_VALUES, nn.Parameter(values, requires_grad=False))
        _use(model, _NAME)
        return _prefixes(model)

    def save(self, model: Any, folder: str) -> None:
        """`prefix.safetensors`, each tensor under its name in the model; PEFT's files too where it can hold them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach() for name, tensor in _prefixes(model).items()}
        save_file(tensors, str(Path(folder) / "prefix.safetensors"))
        facts = {"format": "noback prefix 1", "tokens": self.tokens, "base": model.config.name_or_path}
        (Path(folder) / "prefix.json").write_text(json_text(facts, indent=1), encoding="utf-8")
        modules = [module for module in model.modules() if hasattr(module, _KEYS)]
        layers = [(getattr(module, _KEYS).detach(), getattr(module, _VALUES).detach()) for module in modules]
        save_for_peft(model, layers, Path(folder), partial(_answers, model))


def _prefixes(model: Any) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.named_parameters() if name.endswith((_KEYS, _VALUES))}


def _activations(model: Any, tokens: int, seed: int) -> list[tuple[nn.Module, tuple[Tensor, Tensor]]]:
    """The keys and values [heads, tokens, width] that real tokens have in each attention module."""
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = np.random.RandomState(seed % 2**32).randint(vocabulary, size=(1, tokens))
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def watched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        found[module] = (key[0].contiguous().clone(), value[0].contiguous().clone())
        return _plain_attention()(module, query, key, value, mask, **options)

    _register(watched)
    before = model.config._attn_implementation
    _use(model, _NAME)
    try:
        with torch.inference_mode(mode=False), torch.no_grad():
            model(input_ids=torch.from_numpy(ids).to(model.device))
    except (IndexError, RuntimeError):
        raise InputError(f"adapter.tokens is {tokens}; the model does not take so many tokens: use fewer") from None
    finally:
        _use(model, before)
        _register(_attention)
    if not found:
        raise InputError(f"{type(model).__name__} does not compute attention where a prefix can be put in; try LoRA")
    return list(found.items())


def _answers(model: Any, past: Layers | None) -> Tensor:
    """The logits of a short text with the model's prefix, or after past keys and values and without it."""
    from transformers import DynamicCache

    ids = torch.arange(8, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    before = model.config._attn_implementation
    _use(model, before if past is None else "sdpa")
    try:
        with torch.no_grad():
            cache = None if past is None else DynamicCache(past)
            return model(input_ids=ids, past_key_values=cache, use_cache=past is not None).logits  # type: ignore[no-any-return]
    finally:
        _use(model, before)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> Any:
    """Attention over the prefix and the tokens; a module without a prefix attends to the tokens."""
    keys, values = getattr(module, _KEYS, None), getattr(module, _VALUES, None)
    if keys is None or values is None:
        return _plain_attention()(module, query, key, value, mask, **options)
    examples, tokens = len(key), keys.shape[1]
    causal = options.get("is_causal", getattr(module, "is_causal", False))
    if mask is None and causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).tril()[None, None]
    if mask is not None:
        mask = F.pad(mask, (tokens, 0), value=True if mask.dtype == torch.bool else 0.0)
    key = torch.cat([keys[None].expand(examples, -1, -1, -1), key], dim=2)
    value = torch.cat([values[None].expand(examples, -1, -1, -1), value], dim=2)
    return _plain_attention()(module, query, key, value, mask, **{**options, "is_causal": False})


def _plain_attention() -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS["sdpa"]


def _register(function: Any) -> None:
    """Make an attention function known to the library, with the masks that its own sdpa takes."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_NAME, function)
    AttentionMaskInterface.register(_NAME, sdpa_mask)


def _use(model: Any, name: str) -> None:
    model.set_attn_implementation(name)

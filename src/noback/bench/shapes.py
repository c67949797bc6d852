"""Shapes of well-known models, made with random weights: what a step costs does not depend on their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """An architecture of transformers and its numbers."""

    kind: str  # what AutoConfig.for_model calls it
    limit: int  # tokens that it takes
    numbers: Mapping[str, Any]
    masked: bool = False  # a masked LM; otherwise a causal one


def _opt(layers: int, width: int, heads: int) -> Shape:
    numbers = {
        "num_hidden_layers": layers, "hidden_size": width, "word_embed_proj_dim": width, "num_attention_heads": heads,
        "ffn_dim": 4 * width, "vocab_size": 50272, "max_position_embeddings": 2048,
    }  # fmt: skip
    return Shape("opt", 2048, numbers)


_ROBERTA_LARGE = {
    "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
    "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}  # fmt: skip
_LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip

# None: the embedded model of that name, with its own weights.
SHAPES: dict[str, Shape | None] = {
    "mini": None,
    "roberta-large": Shape("roberta", 512, _ROBERTA_LARGE, masked=True),  # two of its 514 positions serve the padding
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-13b": _opt(40, 5120, 40),
    "llama-8b": Shape("llama", 8192, _LLAMA_8B),
}


def random_model(shape: Shape, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in evaluation mode, its weights made on the device in the type, without a second copy."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(shape.kind, **shape.numbers, use_cache=False)
    kind = transformers.AutoModelForMaskedLM if shape.masked else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        model = kind.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() > 1:
                tensor.normal_(0.0, 0.02)
            else:
                tensor.fill_(1.0 if name.endswith("weight") else 0.0)
    return model.eval()

"""A prefix in PEFT's format, for the models in which PEFT gives the very same answers with it.

PEFT feeds a prefix of n tokens as the cache of n past ones, so the real tokens stand n positions later than they do
in noback, where a prefix takes no position. Where positions are rotations of queries and keys only distances count:
the prefix's keys, which are stored as they were after their rotation, are turned by n positions more, and every score
is as before. Learned positions are part of the tokens; there the shift changes the answers and nothing makes up for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from noback.json_text import json_text

Layers = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, each [heads, tokens, width]
_GROWING = ("dynamic", "longrope")  # rotations that depend on the length of the text


def save_for_peft(model: Any, layers: Layers, folder: Path, answers: Callable[..., Tensor]) -> bool:
    """Write PEFT's two files where it can hold the prefix; whether it can.

    `answers(past=...)` gives logits [1, tokens, vocabulary] of a fixed text: with noback's prefix where `past` is none,
    or with the model's plain attention after these past keys and values. The two must agree, or nothing is written.
    """
    rotary = next((part for name, part in model.named_modules() if name.endswith("rotary_emb")), None)
    if rotary is None or not _takes_a_past(model, layers):
        return False
    try:
        turned = _turned(rotary, layers)
        ours, theirs = answers(past=None), answers(past=[(keys[None], values[None]) for keys, values in turned])
    except Exception:  # noqa: BLE001 (another kind of rotation or of cache, which raises in its own way)
        return False
    tolerance = 1e-2 if ours.dtype == torch.bfloat16 else 1e-4  # a rotation of another layout is farther off
    if not (ours - theirs).abs().max() <= tolerance * (1 + ours.abs().max()):  # nor where a score is no number
        return False
    _write(model, turned, folder)
    return True


def _takes_a_past(model: Any, layers: Layers) -> bool:
    """Whether the prefix can be a past that every token of every length sees alike."""
    config = model.config
    rotation = getattr(config, "rope_parameters", None) or {}
    unlike = len({keys.shape for keys, _ in layers}) != 1 or len(layers) != config.num_hidden_layers
    # In a window the prefix would be a past that falls out of sight; in noback it is always seen.
    windowed = any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())
    windowed = windowed or bool(getattr(config, "sliding_window", None))
    growing = rotation.get("rope_type") in _GROWING
    takes = "past_key_values" in inspect.signature(model.forward).parameters
    return takes and not (unlike or windowed or growing)


def _turned(rotary: Any, layers: Layers) -> list[tuple[Tensor, Tensor]]:
    """The layers with their keys turned by as many positions as the prefix has tokens."""
    some = layers[0][0]
    with torch.no_grad():
        cosines, sines = rotary(some.float(), torch.tensor([[0, some.shape[1]]], device=some.device))
    # Some rotations also scale; the keys have that scale already. At position 0 the cosine is the scale.
    cosine, sine = cosines[0, 1] / cosines[0, 0], sines[0, 1] / cosines[0, 0]

    def turn(keys: Tensor) -> Tensor:
        turning, still = keys.float()[..., : len(cosine)], keys.float()[..., len(cosine) :]  # some turn a part only
        first, second = turning.chunk(2, dim=-1)
        turned = turning * cosine + torch.cat([-second, first], dim=-1) * sine
        return torch.cat([turned, still], dim=-1).to(keys.dtype)

    return [(turn(keys), values) for keys, values in layers]


def _write(model: Any, layers: Layers, folder: Path) -> None:
    """`prompt_embeddings` [tokens, layers x (keys, values) x heads x width], and what PEFT must know to cut it up."""
    parts = torch.stack([part.detach() for layer in layers for part in layer])  # [layers x 2, heads, tokens, width]
    _, heads, tokens, width = parts.shape
    embeddings = parts.permute(2, 0, 1, 3).reshape(tokens, -1).contiguous()
    save_file({"prompt_embeddings": embeddings}, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    facts = {
        "peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "base_model_name_or_path": model.config.name_or_path,
        "inference_mode": True, "num_virtual_tokens": tokens, "num_layers": len(layers), "num_attention_heads": heads,
        "token_dim": heads * width, "num_transformer_submodules": 1, "encoder_hidden_size": heads * width,
        "prefix_projection": False,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json_text(facts, indent=2, sort_keys=True), encoding="utf-8")

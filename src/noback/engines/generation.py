"""Greedy generation: many prompts at once, padded on the left, each answered as it would be by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.inference_mode()
def generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], limit: int, stop: Sequence[str] = ()
) -> list[str]:
    """What a causal model writes after each prompt, at most `limit` tokens, cut before the first stop string."""
    from transformers import GenerationConfig

    ids, attention = _padded(prompts, _padding(model, tokenizer))
    settings = GenerationConfig(
        max_new_tokens=limit, do_sample=False, num_beams=1, pad_token_id=_padding(model, tokenizer),
        eos_token_id=_endings(model, tokenizer),
    )  # fmt: skip

    def stopped(tokens: Tensor, _scores: Any, **_: Any) -> Tensor:
        texts = tokenizer.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)
        return torch.tensor([any(part in text for part in stop) for text in texts], device=tokens.device)

    tokens = model.generate(
        input_ids=ids.to(model.device), attention_mask=attention.to(model.device), generation_config=settings,
        stopping_criteria=[stopped] if stop else [],
    )  # fmt: skip
    texts = tokenizer.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)
    return [_cut(text, stop).strip() for text in texts]


def _cut(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.index(part) for part in stop if part in text), default=len(text))]


def _padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    attention = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        attention[row, longest - len(prompt) :] = 1
    return ids, attention


def _endings(model: Any, tokenizer: Any) -> list[int]:
    """The tokens with which a model may end a text."""
    found = model.generation_config.eos_token_id
    named = found if isinstance(found, list) else [found, tokenizer.eos_token_id]
    return sorted({token for token in named if token is not None})


def _padding(model: Any, tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (_endings(model, tokenizer) or [0])[0])

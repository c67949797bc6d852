"""Greedy generation: many prompts at once, padded on the left, each answered as it would be by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noback.errors import NoNumbers


@dataclass(frozen=True, slots=True)
class Writing:
    """How a causal model writes: the likeliest token each time, at most `limit` of them, until a stop string."""

    tokenizer: Any
    limit: int
    stop: tuple[str, ...] = ()

    @torch.inference_mode()
    def tokens(self, model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What the model writes after each prompt, without the token that ends a text.

        Keys and values of earlier tokens are kept within this call only: they are of the weights as they stand in it.
        """
        from transformers import GenerationConfig

        padding, endings = self.padding(model), self.endings(model)
        ids, attention = _padded(prompts, padding)
        settings = GenerationConfig(
            max_new_tokens=self.limit, do_sample=False, num_beams=1, pad_token_id=padding, eos_token_id=endings
        )

        def stopped(tokens: Tensor, _scores: Any, **_: Any) -> Tensor:
            texts = self._decoded(tokens[:, ids.shape[1] :])
            return torch.tensor([any(part in text for part in self.stop) for text in texts], device=tokens.device)

        highest: list[Tensor] = []  # score at each token: a nan is the highest, and -inf is where none has a score

        def seen(_tokens: Tensor, scores: Tensor) -> Tensor:
            highest.append(scores.amax(dim=-1))
            return scores

        found = model.generate(
            input_ids=ids.to(model.device), attention_mask=attention.to(model.device), generation_config=settings,
            stopping_criteria=[stopped] if self.stop else [], logits_processor=[seen],
        )  # fmt: skip
        _check_written(torch.stack(highest))
        return [_ended(row, endings, padding) for row in found[:, ids.shape[1] :].tolist()]

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """The tokens as texts, each cut before the first stop string."""
        return [_cut(text, self.stop).strip() for text in self._decoded(tokens)]

    def endings(self, model: Any) -> list[int]:
        """The tokens with which a model may end a text."""
        found = model.generation_config.eos_token_id
        named = found if isinstance(found, list) else [found, self.tokenizer.eos_token_id]
        return sorted({token for token in named if token is not None})

    def padding(self, model: Any) -> int:
        """The token that fills a row."""
        own = self.tokenizer.pad_token_id
        return int(own if own is not None else (self.endings(model) or [0])[0])

    def _decoded(self, tokens: Any) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return texts


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], limit: int, stop: Sequence[str] = ()
) -> list[str]:
    """What a causal model writes after each prompt, at most `limit` tokens, cut before the first stop string."""
    writing = Writing(tokenizer, limit, tuple(stop))
    return writing.texts(writing.tokens(model, prompts))


def _check_written(highest: Tensor) -> None:
    """Refuse texts whose tokens were chosen by scores that are no numbers: [tokens, prompts], the highest of each."""
    wrong = int((~highest.isfinite()).any(dim=0).sum())
    if wrong:
        raise NoNumbers(
            f"{wrong} of {highest.shape[1]} prompts give their next tokens scores that are no numbers (nan or infinite)"
        )


def _cut(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.index(part) for part in stop if part in text), default=len(text))]


def _ended(tokens: list[int], endings: Sequence[int], padding: int) -> list[int]:
    """A row without its end and what fills it up."""
    tokens = tokens[: min((tokens.index(end) for end in endings if end in tokens), default=len(tokens))]
    while tokens and tokens[-1] == padding:
        tokens.pop()
    return tokens


def _padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    attention = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        attention[row, longest - len(prompt) :] = 1
    return ids, attention

"""Encoding: an example becomes a prompt of tokens, once; batches are padded to their longest example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noback.errors import InputError
from noback.tasks.data import Example
from noback.tasks.spec import TaskSpec
from noback.tasks.template import Literal, Sentence, plain_template


@dataclass(frozen=True, slots=True)
class Candidates:
    """Continuations to score, a row each, those of an example side by side."""

    targets: Tensor  # [rows, tokens of the longest], the tokens that are scored; -1 beyond a continuation's end
    counts: tuple[int, ...]  # how many candidates each example has
    width: int  # the columns of the label logits: at least the largest count


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded examples, padded to the longest of them: a row each, or a row for each candidate."""

    inputs: dict[str, Tensor]  # what the model takes, each [rows, tokens]
    mask_positions: Tensor  # where the answer is read: [rows], or [rows, tokens of the longest candidate]
    gold: Tensor  # [examples], the index of the right label
    candidates: Candidates | None = None  # none: label words or a head

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def rows(self) -> int:
        """The first dimension of what the model takes."""
        return len(self.mask_positions)

    def part(self, examples: slice) -> Batch:
        """Some of the examples."""
        found, rows = self.candidates, examples
        if found is not None:
            first, last, _ = examples.indices(len(self))
            rows = slice(sum(found.counts[:first]), sum(found.counts[:last]))
            found = Candidates(found.targets[rows], found.counts[first:last], found.width)
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return Batch(inputs, self.mask_positions[rows], self.gold[examples], found)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        found = self.candidates
        if found is not None:
            found = Candidates(found.targets.to(device), found.counts, found.width)
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.mask_positions.to(device), self.gold.to(device), found)


def padded(rows: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Tokens side by side, and which of them are real."""
    ids = filled(rows, padding)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def filled(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Rows of numbers, the shorter ones filled up: [rows, longest]."""
    longest = max(map(len, rows))
    # By NumPy: torch.tensor takes several times as long, and a GPU waits for the batch.
    return torch.from_numpy(np.array([[*row, *[padding] * (longest - len(row))] for row in rows], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example as the model sees it."""

    ids: list[int]
    segments: list[int]
    mask_position: int
    gold: int
    shortened: bool

    @property
    def identity(self) -> tuple[object, ...]:
        """What a digest of the data goes over."""
        return (self.ids, self.segments, self.mask_position, self.gold)


class Encoder:
    """Turns examples into prompts for one tokenizer, within the task's limits and the model's."""

    def __init__(
        self, spec: TaskSpec, tokenizer: Any, model_limit: int | None = None, *, for_head: bool = False
    ) -> None:
        """`for_head`: the sentences alone, as a classifier sees them, in place of the task's template."""
        self._spec, self._tokenizer = spec, tokenizer
        self._limit = min(spec.max_length, model_limit or spec.max_length)
        for kind in ("pad", "cls", "sep") if for_head else ("mask", "pad", "cls", "sep"):
            if getattr(tokenizer, f"{kind}_token_id") is None:
                raise InputError(f"the model's tokenizer has no {kind} token; a masked-LM task needs one")
        separators = tokenizer.num_special_tokens_to_add(pair=True) - 2  # RoBERTa puts two between a pair
        self._pieces = (plain_template(len(spec.sentences), separators) if for_head else spec.parsed).pieces

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Every example, each piece tokenised by itself, sentences shortened so that the whole prompt fits."""
        columns = [self._column(piece, examples) for piece in self._pieces]
        return [
            self._encoded([column[row] for column in columns], example.gold) for row, example in enumerate(examples)
        ]

    def _bounded(self, parts: list[list[int]]) -> list[list[int]]:
        """The parts, each sentence cut to its own limit."""
        pieces = zip(self._pieces, parts, strict=True)
        return [part[: self._spec.limit_of(p.index)] if isinstance(p, Sentence) else part for p, part in pieces]

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        """The examples side by side, padded to the longest."""
        inputs = padded([example.ids for example in encoded], self._tokenizer.pad_token_id)
        if "token_type_ids" in self._tokenizer.model_input_names:
            inputs["token_type_ids"] = filled([example.segments for example in encoded], 0)
        return Batch(
            inputs,
            torch.tensor([example.mask_position for example in encoded]),
            torch.tensor([example.gold for example in encoded]),
        )

    def _column(self, piece: object, examples: Sequence[Example]) -> list[list[int]]:
        """One piece's tokens in every example."""
        if isinstance(piece, Sentence):
            texts = [piece.render(example.sentences[piece.index]) for example in examples]
            return self._tokens(texts)
        if isinstance(piece, Literal):
            return self._tokens([piece.text]) * len(examples)
        kind = {"cls": "cls", "mask": "mask", "sep+": "sep"}[piece.kind]  # type: ignore[attr-defined]
        return [[getattr(self._tokenizer, f"{kind}_token_id")]] * len(examples)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def _encoded(self, parts: list[list[int]], gold: int) -> Encoded:
        kept = self._fitted(self._bounded(parts))
        ids: list[int] = []
        segments: list[int] = []
        segment, mask_position = 0, 0
        for piece, part in zip(self._pieces, kept, strict=True):
            kind = getattr(piece, "kind", "")
            if kind == "mask":
                mask_position = len(ids)
            ids += part
            segments += [min(segment, 1)] * len(part)
            segment += kind == "sep+"
        return Encoded(ids, segments, mask_position, gold, kept != parts)

    def _fitted(self, parts: list[list[int]]) -> list[list[int]]:
        """The parts, their longest sentences shortened token by token until the prompt fits."""
        excess = sum(map(len, parts)) - self._limit
        if excess <= 0:
            return parts
        is_sentence = [isinstance(piece, Sentence) for piece in self._pieces]
        lengths = [len(part) for part in parts]
        for _ in range(excess):
            longest = max((index for index, yes in enumerate(is_sentence) if yes), key=lambda index: lengths[index])
            lengths[longest] -= 1
            if lengths[longest] < 1:
                raise InputError(
                    f"the prompt of task {self._spec.name!r} cannot fit: its template alone leaves no room for a "
                    f"sentence in {self._limit} tokens; raise max_length or shorten the template"
                )
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

"""Encoding for causal models: a prompt of tokens, and the answers that may follow it.

Where each answer is one token, a row is the prompt and the answer is read at its last token. Otherwise a row is the
prompt and one candidate, and each of the candidate's tokens is read at the token before it. Rows are padded at their
end, where no token of the prompt can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noback.errors import InputError
from noback.tasks.data import Example
from noback.tasks.encoding import Batch, Candidates, filled, padded
from noback.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One example as a causal model sees it."""

    ids: list[int]  # the prompt
    continuations: tuple[tuple[int, ...], ...]  # the tokens of each candidate; none where label words are read
    gold: int
    right: tuple[int, ...]
    shortened: bool

    @property
    def identity(self) -> tuple[object, ...]:
        """What a digest of the data goes over."""
        return (self.ids, self.continuations, self.gold, self.right)

    def answered(self) -> EncodedPrompt:
        """With its right candidate alone."""
        return EncodedPrompt(self.ids, (self.continuations[self.gold],), 0, (0,), self.shortened)


class CausalEncoder:
    """Turns examples into prompts and candidates for one tokenizer, within the task's limit and the model's."""

    def __init__(self, spec: TaskSpec, tokenizer: Any, model_limit: int | None = None) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        if model_limit is not None and spec.max_new_tokens >= model_limit:
            raise InputError(
                f"max_new_tokens of task {spec.name!r} is {spec.max_new_tokens}; the model takes {model_limit} tokens, "
                "the prompt's among them: use fewer"
            )
        self._limit = min(spec.max_length, model_limit or spec.max_length)
        self._shown = _Shown(spec, tokenizer)
        self._words = self.continuations(list(spec.words.values()))
        for word, tokens in zip(spec.words.values(), self._words, strict=True):
            if tokenizer.unk_token_id in tokens:
                raise InputError(f"label word {word!r} holds the unknown token of this tokenizer; choose another word")
        if len(set(self._words)) < len(self._words):
            raise InputError(f"two label words of task {spec.name!r} are the same tokens; choose another word")

    @property
    def word_ids(self) -> list[int] | None:
        """The token of each label word; none where one of them has several, or the answers are no label words."""
        return [tokens[0] for tokens in self._words] if set(map(len, self._words)) == {1} else None

    def continuations(self, texts: list[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each text where it follows the prompt: those it has after some other text."""
        glue = self._shown.glue
        before = "It" if glue else "\n"
        lead, *wholes = self._tokens([before, *(before + glue + text for text in texts)])
        # A tokenizer may put a mark of its own before any text, so a text by itself would have other tokens.
        apart = all(whole[: len(lead)] == lead for whole in wholes)
        found = [whole[len(lead) :] for whole in wholes] if apart else self._tokens([glue + text for text in texts])
        for text, tokens in zip(texts, found, strict=True):
            if not tokens:
                raise InputError(f"the tokenizer finds no token in {text!r}; are the model's tokenizer files there?")
        return tuple(map(tuple, found))

    def encode(self, examples: Sequence[Example], instead: str | None = None) -> list[EncodedPrompt]:
        """Every example; a prompt that is too long loses its beginning, and keeps the token that opens a text.

        `instead` stands for every column of the prompts; the candidates keep the columns that they show.
        """
        shown = [example.sentences if instead is None else (instead,) * len(example.sentences) for example in examples]
        prompts = self._tokens([self._shown.text(sentences) for sentences in shown])
        return [self._encoded(example, tokens) for example, tokens in zip(examples, prompts, strict=True)]

    def _encoded(self, example: Example, tokens: list[int]) -> EncodedPrompt:
        whole = self._continuations(example)
        # A written answer may be longer than the model takes: half of the room is the prompt's.
        found = tuple(one[: self._limit // 2] for one in whole) if self._spec.answer == "text" else whole
        longest = max([self._spec.max_new_tokens, *map(len, found)])
        room = self._limit - len(self._shown.opening) - longest
        if room < 1:
            raise InputError(
                f"the prompt of task {self._spec.name!r} cannot fit: an answer of {longest} tokens leaves it no room "
                f"in {self._limit} tokens; raise max_length or shorten the answer"
            )
        if not (tokens or self._shown.opening):
            raise InputError(f"an example of task {self._spec.name!r} has an empty prompt; give it some text")
        shortened = len(tokens) > room or found != whole
        return EncodedPrompt(
            [*self._shown.opening, *tokens[-room:]], found, example.gold, example.right, shortened=shortened
        )

    def _continuations(self, example: Example) -> tuple[tuple[int, ...], ...]:
        spec = self._spec
        if spec.answer == "words":
            return () if self.word_ids else self._words
        if spec.answer == "choices":
            texts = [spec.rendered_choice(example.sentences, choice) for choice in example.choices]
            return self.continuations(texts)
        if not example.accepted:  # nothing is known of the answer
            return ()
        ending = self._tokenizer.eos_token_id
        if spec.stop or ending is None:
            return self.continuations([example.accepted[0] + "".join(spec.stop[:1])])
        return ((*self.continuations([example.accepted[0]])[0], ending),)

    def batch(self, encoded: Sequence[EncodedPrompt]) -> Batch:
        """The examples side by side, padded to the longest."""
        gold = torch.tensor([example.gold for example in encoded])
        if not any(example.continuations for example in encoded):
            inputs = self._padded([example.ids for example in encoded])
            return Batch(inputs, torch.tensor([len(example.ids) - 1 for example in encoded]), gold)
        # The last token of a candidate is only predicted, never seen.
        rows = [([*one.ids, *tokens[:-1]], tokens) for one in encoded for tokens in one.continuations]
        positions = filled([range(len(ids) - len(tokens), len(ids)) for ids, tokens in rows], 0)
        targets = filled([tokens for _, tokens in rows], -1)
        counts = tuple(len(one.continuations) for one in encoded)
        return Batch(self._padded([ids for ids, _ in rows]), positions, gold, Candidates(targets, counts, max(counts)))

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return padded(rows, self._tokenizer.pad_token_id or 0)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return found


class _Shown:
    """How a prompt is shown to a model: as it is, or as a user's message of a chat."""

    def __init__(self, spec: TaskSpec, tokenizer: Any) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        if spec.chat and not tokenizer.chat_template:
            raise InputError(
                f"task {spec.name!r} is a chat and the model's tokenizer has no chat template; set chat = false"
            )
        message = self._message("a") if spec.chat else ""
        self.glue = spec.asked.glue if not spec.chat else "" if message[-1:].isspace() else " "
        # A chat template may open the text itself.
        opened = bool(tokenizer.bos_token) and message.startswith(tokenizer.bos_token)
        self.opening = [] if opened else _opening(tokenizer)

    def text(self, sentences: tuple[str, ...]) -> str:
        """The text of a row's prompt."""
        text = self._spec.rendered(sentences)
        return self._message(text) if self._spec.chat else text

    def _message(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _opening(tokenizer: Any) -> list[int]:
    """The token that opens a text, for a tokenizer that gives one by itself."""
    first = tokenizer("a")["input_ids"][:1]
    return list(first) if first and first[0] == tokenizer.bos_token_id else []

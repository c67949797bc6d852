"""What every contender is given: a model, a batch, two label words, and the plain way to read their logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.adapters import model_limit
from noback.bench.case import BenchCase
from noback.bench.shapes import SHAPES, Shape, random_model
from noback.engines import chosen_device, is_causal, keep_freed_memory, open_model
from noback.engines.modules.kinds import is_plain, replaced_forward
from noback.engines.readout import base_of
from noback.errors import InputError
from noback.tasks import Batch
from noback.weights import DTYPES

_FIRST_WORD = 10  # below are special tokens in many vocabularies


@dataclass(frozen=True)
class Subject:
    """A model on its device, and a batch of full rows for it; the batch's tensors are on the CPU."""

    model: Any
    batch: Batch
    words: tuple[int, int]  # the label words' tokens
    base: nn.Module  # the part of the model below its head
    device: torch.device
    tf32: bool = False  # whether float32 products are in TF32, on a CUDA device


def subject_of(case: BenchCase, note: Callable[[str], None]) -> Subject:
    """The case's model and batch; what the model cannot take is refused before it is made."""
    device, dtype = chosen_device(None if case.device == "auto" else case.device), DTYPES[case.dtype]
    shape = None if case.model else SHAPES[case.shape]
    if shape is not None:
        case.check_tokens(shape.limit)
        keep_freed_memory()  # as for a model that is opened
        note(f"making {case.shape} with random weights in {case.dtype}")
        model = _made(case, shape, dtype, device)
        return subject_with(model, case, device, masked=shape.masked, mask=shape.numbers["vocab_size"] - 1)
    name = case.model or case.shape
    model, tokenizer, *_ = open_model(name, case.dtype, device, causal=is_causal(name))
    case.check_tokens(model_limit(model))
    model.config.use_cache = False
    masked = "MaskedLM" in type(model).__name__
    return subject_with(model, case, device, masked=masked, mask=tokenizer.mask_token_id or 0)


def subject_with(model: Any, case: BenchCase, device: torch.device, *, masked: bool, mask: int) -> Subject:
    """A model and a random batch for it; a causal model is read at the last token, a masked one at a mask token."""
    draw = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.randint(_FIRST_WORD, vocabulary - 1, (case.batch, case.tokens), generator=draw)
    positions = torch.full((case.batch,), case.tokens - 1)
    if masked:
        positions = torch.randint(0, case.tokens, (case.batch,), generator=draw)
        ids[torch.arange(case.batch), positions] = mask
    gold = torch.randint(0, 2, (case.batch,), generator=draw)
    words = (vocabulary // 3, vocabulary // 2)
    # Rows are full, but training always passes a mask, and a captured forward takes a slower path without one.
    batch = Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, positions, gold)
    return Subject(model, batch, words, base_of(model), device, case.matmul_precision == "tf32")


class PlainForward:
    """Label logits [rows, labels] in float32 by the model's own forward, its head at one position of each row."""

    def __init__(self, subject: Subject, *, times: int = 1, every_word: bool = False, compiled: bool = False) -> None:
        """`times` the batch in one forward; `every_word`: the head gives the vocabulary, not the label words only."""
        self._model, self._base = subject.model, subject.base
        batch, device = subject.batch, subject.device
        self._inputs = {name: tensor.repeat(times, 1).to(device) for name, tensor in batch.inputs.items()}
        self._positions = batch.mask_positions.repeat(times).to(device)
        self._rows = torch.arange(len(self._positions), device=device)
        self._words = torch.tensor(subject.words, device=device)
        self._decoder = None if every_word else _decoder(subject.model)
        forward: Callable[..., Any] = self._base.forward
        self._below = torch.compile(forward, dynamic=False) if compiled else forward

    def __call__(self) -> Tensor:
        """Run the model once."""
        with self._reading():
            logits = self._model(**self._inputs).logits[:, 0]
        return (logits if self._decoder is not None else logits[:, self._words]).float()  # type: ignore[no-any-return]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(replaced_forward(self._base, self._cut))
            if self._decoder is not None:
                stack.enter_context(replaced_forward(self._decoder, self._label_words))
            yield

    def _cut(self, *args: Any, **kwargs: Any) -> Any:
        output = self._below(*args, **kwargs)
        output.last_hidden_state = output[0][self._rows, self._positions][:, None]
        return output

    def _label_words(self, hidden: Tensor) -> Tensor:
        weight, bias = self._decoder.weight, self._decoder.bias  # type: ignore[union-attr]
        return F.linear(hidden, weight[self._words], None if bias is None else bias[self._words])


def _decoder(model: Any) -> nn.Linear | None:
    """The head's last product, where it can be asked for the label words' rows alone."""
    decoder = model.get_output_embeddings()
    return decoder if decoder is not None and is_plain(decoder, nn.Linear) else None


def _made(case: BenchCase, shape: Shape, dtype: torch.dtype, device: torch.device) -> Any:
    try:
        return random_model(shape, dtype, device)
    except (torch.OutOfMemoryError, MemoryError):
        raise InputError(f"shape {case.shape!r} in {case.dtype} does not fit into this machine's memory") from None

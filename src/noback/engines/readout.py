"""Readouts: label logits [examples, labels] from label words at the mask, or from a classification head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from noback.engines.probed import is_plain, replaced_forward
from noback.errors import InputError


class Readout(Protocol):
    """How label logits are read off a model."""

    @property
    def rows(self) -> Mapping[nn.Module, Tensor]:
        """The output rows that are wanted of a plain linear module."""
        ...

    def reading(self, mask_positions: Tensor) -> AbstractContextManager[None]:
        """Within, the model is run."""
        ...

    def label_logits(self, logits: Tensor) -> Tensor:
        """The model's logits as float32 [rows, labels]."""
        ...


class HeadLogits:
    """A classifier's logits are label logits already."""

    rows: Mapping[nn.Module, Tensor] = {}

    def reading(self, _mask_positions: Tensor) -> AbstractContextManager[None]:
        """Nothing changes."""
        return nullcontext()

    def label_logits(self, logits: Tensor) -> Tensor:
        """[rows, labels] in float32."""
        return logits.float()


class MaskedLabelWords:
    """Reads label logits [examples, labels] from any masked LM of the Hugging Face kind.

    The model's own forward runs, so its own head is what is evaluated: the base model's answer is cut down to the
    mask position before the head sees it, and the decoder is asked for the label words' rows.
    """

    def __init__(self, model: Any, word_ids: Sequence[int]) -> None:
        self._model = model
        self._base = model.base_model
        if self._base is model:
            raise InputError(f"{type(model).__name__} is no masked LM with a head of its own")
        self._words = torch.tensor(word_ids, device=next(model.parameters()).device)
        decoder = model.get_output_embeddings()
        # The rows in ascending order serve the noise; `_back` puts the labels in theirs.
        ascending, self._back = torch.sort(self._words)[0], torch.argsort(torch.argsort(self._words))
        self.rows: dict[nn.Module, Tensor] = (
            {decoder: ascending} if decoder is not None and is_plain(decoder, nn.Linear) else {}
        )

    @contextmanager
    def reading(self, mask_positions: Tensor) -> Iterator[None]:
        """Within, the head sees the mask position of each row only."""
        original = self._base.forward

        def at_the_mask(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            hidden = output[0]
            picked = hidden[torch.arange(len(hidden), device=hidden.device), mask_positions][:, None]
            if isinstance(output, tuple):
                return (picked, *output[1:])
            output.last_hidden_state = picked
            return output

        with replaced_forward(self._base, at_the_mask):
            yield

    def label_logits(self, logits: Tensor) -> Tensor:
        """[rows, 1, label words or vocabulary] to float32 [rows, labels]."""
        choice = self._back if logits.shape[-1] == len(self._words) else self._words
        return logits[:, 0, choice].float()

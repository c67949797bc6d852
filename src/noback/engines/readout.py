"""Readouts: label logits [examples, labels] from label words, continuations, or a classification head."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noback.engines.modules.kinds import is_plain, replaced_forward
from noback.errors import InputError, NoNumbers, NoReadout
from noback.tasks import Candidates


def readout_of(model: Any, word_ids: Sequence[int] | None) -> Readout:
    """How a model's labels are read: from its label words, or, where there are none, from its head."""
    return HeadLogits() if word_ids is None else LabelWords(model, word_ids)


def decoder_of(model: Any) -> nn.Linear:
    """The linear whose rows are a model's words, on top of whose rows a readout can stand; others are refused."""
    decoder = model.get_output_embeddings()
    if decoder is None or not is_plain(decoder, nn.Linear):
        what = "has no decoder" if decoder is None else f"has a decoder of kind {type(decoder).__name__}"
        raise NoReadout(f"{type(model).__name__} {what}, where a readout needs a plain linear whose rows are words")
    return decoder


def readout_for(targets: Tensor | None, model: Any, usual: Readout) -> Readout:
    """How a batch is read: as usual, or from the candidates' tokens that it brings."""
    return usual if targets is None else Continuations(model, targets)


def by_example(scores: Tensor, candidates: Candidates | None) -> Tensor:
    """Scores [rows, 1] of candidates as [examples, candidates], -inf where an example has fewer; others as they are."""
    if candidates is None:
        return scores
    parts = torch.split(scores[:, 0], list(candidates.counts))
    pad, lowest = nn.functional.pad, float("-inf")
    return torch.stack([pad(part, (0, candidates.width - len(part)), value=lowest) for part in parts])


def check_numbers(logits: Tensor, candidates: Candidates | None) -> None:
    """Refuse label logits [examples, labels] or [points, examples, labels], on the CPU, that are no finite numbers."""
    refuse_examples(without_numbers(logits, candidates))


def without_numbers(logits: Tensor, candidates: Candidates | None) -> NDArray[np.bool_]:
    """Which examples have label logits, [..., examples, labels] on the CPU, that are no finite numbers.

    -inf is one only where `by_example` puts it: beyond the candidates of an example that has fewer. NumPy decides: it
    wakes no threads for so little.
    """
    scores = logits.numpy()
    wrong = ~np.isfinite(scores)
    if candidates is not None and wrong.any():
        beyond = np.arange(scores.shape[-1]) >= np.array(candidates.counts)[:, None]
        wrong &= ~(beyond & np.isneginf(scores))
    examples: NDArray[np.bool_] = wrong.any(axis=-1).reshape(-1, scores.shape[-2]).any(axis=0)
    return examples


def refuse_examples(wrong: NDArray[np.bool_]) -> None:
    """Refuse a batch of which some examples have no numbers."""
    if wrong.any():
        raise NoNumbers(
            f"{wrong.sum()} of {len(wrong)} examples have label logits that are no numbers (nan or infinite)"
        )


class HeadLogits:
    """A classifier's logits are label logits already."""

    rows: Mapping[nn.Module, Tensor] = {}  # the output rows that are wanted of a plain linear module
    labels = 0  # how many label words are read
    of_some = False  # whether the positions that it is given are all that is read of a model's last layer

    def reading(self, _mask_positions: Tensor) -> AbstractContextManager[None]:
        """Nothing changes."""
        return nullcontext()

    def label_logits(self, logits: Tensor) -> Tensor:
        """[rows, labels] in float32."""
        return logits.float()


class LabelWords:
    """Reads label logits [examples, labels] from any masked or causal LM of the Hugging Face kind.

    The model's own forward runs, so its own head is what is evaluated: the base model's answer is cut down to the
    mask position (a causal model's last token) before the head sees it, and the decoder is asked for the label
    words' rows.
    """

    of_some = True

    def __init__(self, model: Any, word_ids: Sequence[int]) -> None:
        self._base, self.labels = base_of(model), len(word_ids)
        self._words = torch.tensor(word_ids, device=next(model.parameters()).device)
        decoder = model.get_output_embeddings()
        # The rows in ascending order serve the noise; `_back` puts the labels in theirs.
        ascending, self._back = torch.sort(self._words)[0], torch.argsort(torch.argsort(self._words))
        self.rows: dict[nn.Module, Tensor] = (
            {decoder: ascending} if decoder is not None and is_plain(decoder, nn.Linear) else {}
        )

    def reading(self, mask_positions: Tensor) -> AbstractContextManager[None]:
        """Within, the head sees the mask position of each row only."""
        return read_at(self._base, mask_positions)

    def label_logits(self, logits: Tensor) -> Tensor:
        """[rows, 1, label words or vocabulary] to float32 [rows, labels]."""
        choice = self._back if logits.shape[-1] == len(self._words) else self._words
        return logits[:, 0, choice].float()


class Continuations:
    """Reads a batch's candidates off a causal LM: the mean log-probability of each one's tokens.

    The head sees only the tokens before those that are scored.
    """

    rows: Mapping[nn.Module, Tensor] = {}
    labels = 0
    of_some = True

    def __init__(self, model: Any, targets: Tensor) -> None:
        """`targets`: the tokens that are scored, [rows, tokens of the longest]; -1 beyond a continuation's end."""
        self._base, self._targets = base_of(model), targets

    def reading(self, mask_positions: Tensor) -> AbstractContextManager[None]:
        """Within, the head sees the positions [rows, tokens] only."""
        return read_at(self._base, mask_positions)

    def label_logits(self, logits: Tensor) -> Tensor:
        """[probes x rows, tokens, vocabulary] to float32 [probes x rows, 1]; `by_example` lays them out."""
        probes = len(logits) // len(self._targets)
        return mean_log_probability(logits, self._targets.repeat(probes, 1))[:, None]


Readout: TypeAlias = HeadLogits | LabelWords | Continuations  # how label logits are read off a model


def mean_log_probability(logits: Tensor, targets: Tensor) -> Tensor:
    """[rows, tokens, vocabulary] and the tokens [rows, tokens] (-1: none) to float32 [rows]."""
    targets = targets.to(logits.device)
    real = targets >= 0
    chosen = logits.gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0].float()
    found = (chosen - logits.float().logsumexp(dim=2)) * real
    return found.sum(dim=1) / real.sum(dim=1)


def without_cache(model: Any) -> dict[str, bool]:
    """How to tell a causal model to keep no keys and values: those of one probe must never serve another."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def base_of(model: Any) -> nn.Module:
    """The part of a language model below its head."""
    base: nn.Module = model.base_model
    if base is model:
        raise InputError(f"{type(model).__name__} is no language model with a head of its own")
    decoder = model.get_decoder()  # OPT's head reads a part of the base model
    return decoder if any(part is decoder for part in base.modules()) else base


def layers_of(model: Any) -> list[nn.Module]:
    """The layers of a language model, first to last: the first list of modules below its head."""
    found = (part for part in base_of(model).modules() if isinstance(part, nn.ModuleList) and len(part) > 0)
    return list(next(found, []))


@contextmanager
def read_at(base: nn.Module, positions: Tensor) -> Iterator[None]:
    """Within, the base model gives the hidden states of some positions only: [rows] or [rows, several] of them."""
    original, called = base.forward, False

    def cut(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        called = True
        output = original(*args, **kwargs)
        hidden = output[0]
        picked = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], positions.view(len(hidden), -1)]
        if isinstance(output, tuple):
            return (picked, *output[1:])
        output.last_hidden_state = picked
        return output

    with replaced_forward(base, cut):
        yield
    if not called:  # the head saw something else, and its logits stand elsewhere
        raise InputError(f"the model runs without its {type(base).__name__}, where its answers are read; use another")

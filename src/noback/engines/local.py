"""The local engine: a Hugging Face model in this process, its probes batched into one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from noback.engines.displaced import Displaced, TensorNames
from noback.engines.probed import Probes
from noback.engines.readout import MaskedLabelWords
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

T = TypeVar("T")


class Local:
    """Scores all points of a step in one forward, or `probes_per_pass` of them at a time."""

    def __init__(
        self,
        model: Any,
        weights: Weights,
        word_ids: Sequence[int],
        *,
        probes_per_pass: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        """`micro_batch` bounds the examples of a forward; the losses are those of the whole batch."""
        self._model = model.eval()
        self._weights = weights
        self._readout = MaskedLabelWords(model, word_ids)
        self._names = TensorNames(model.named_parameters(), weights)
        self._probes = Probes(model, weights, self._readout.rows)
        self._probes_per_pass, self._micro_batch = probes_per_pass, micro_batch

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    @property
    def used_outside(self) -> set[str]:
        """Tuned tensors that the model uses outside the modules that own them: it is then scored point by point."""
        return self._probes.used_outside

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        scores: list[Tensor] = []
        for together in _cut(points, self._probes_per_pass):
            parts = [self._pass(part, together) for part in _micro_batches(batch, self._micro_batch)]
            scores.extend(torch.cat(list(of_point)) for of_point in zip(*parts, strict=True))
        return scores

    def _pass(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        if self.used_outside:
            return [self._displaced(batch, point) for point in points]
        probes = len(points)
        inputs = {name: tensor.repeat(probes, 1) for name, tensor in batch.inputs.items()}
        positions = batch.mask_positions.repeat(probes)
        with self._probes.at(points, len(batch)), self._readout.reading(positions):
            logits = self._readout.label_logits(self._model(**inputs).logits)
        if self.used_outside:  # the first forward showed it: that forward does not count
            return self._pass(batch, points)
        return list(logits.chunk(probes))

    def _displaced(self, batch: Batch, point: Move) -> Tensor:
        """One point at a time: for a model that uses a tuned tensor outside the module that owns it."""
        displaced = Displaced(self._weights, self._names, point) if point.terms else nullcontext()
        with displaced, self._readout.reading(batch.mask_positions):
            return self._readout.label_logits(self._model(**batch.inputs).logits)


def _cut(items: Sequence[T], size: int | None) -> Iterator[Sequence[T]]:
    size = size or len(items)
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    for part in _cut(range(len(batch)), size):
        span = slice(part[0], part[-1] + 1)
        yield Batch(
            {name: tensor[span] for name, tensor in batch.inputs.items()}, batch.mask_positions[span], batch.gold[span]
        )

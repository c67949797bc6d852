"""The local engine: a Hugging Face model in this process, its probes batched into one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from noback.engines.displaced import Displaced, TensorNames
from noback.engines.probed import Probes
from noback.engines.readout import readout_for, readout_of, without_cache
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
        word_ids: Sequence[int] | None,
        *,
        probes_per_pass: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        """`word_ids` none: a head or a batch's candidates are read. `micro_batch` bounds the examples of a forward."""
        self._model = model.eval()
        self._weights = weights
        self._readout = readout_of(model, word_ids)
        self._settings = without_cache(model)
        self._names = TensorNames(model.named_parameters(), weights)
        self._probes = Probes(model, weights, self._readout.rows)
        self._probes_per_pass, self._micro_batch = probes_per_pass, micro_batch
        self._checked = False  # whether a displaced forward was seen to equal the same points one by one
        self.point_by_point = False  # the model does not take probes side by side

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        scores: list[Tensor] = []
        for together in _cut(points, self._probes_per_pass):
            parts = [self._pass(part, together) for part in _micro_batches(batch, self._micro_batch)]
            scores.extend(torch.cat(list(of_point)) for of_point in zip(*parts, strict=True))
        return scores

    def _pass(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        if not self._checked and any(point.terms for point in points):
            return self._first_displaced_pass(batch, points)
        return self._alone(batch, points) if self.point_by_point else self._probed(batch, points)

    def _first_displaced_pass(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """Trust probes side by side only once they gave what the points give one by one.

        A model may hide the batch (tokens first, relative positions) or use a tuned tensor outside the module that
        owns it; its slopes would be wrong in silence.
        """
        # A first dimension that is not points x rows, or a multiple, raises; tokens must not be such by chance.
        tokens = next(iter(batch.inputs.values())).shape[1]
        seen = batch.part(slice(0, -1)) if tokens % (len(points) * batch.rows) == 0 and len(batch) > 1 else batch
        try:
            together = self._probed(seen, points)
        except Exception:  # noqa: BLE001 (whatever went wrong, the plain way decides)
            together = []
        alone = self._alone(seen, points)
        agree = bool(together) and all(self._close(*pair) for pair in zip(together, alone, strict=True))
        self.point_by_point = not agree or bool(self._probes.used_outside)
        self._checked = True
        if seen is not batch:
            return self._pass(batch, points)
        return alone if self.point_by_point else together

    def _close(self, one: Tensor, other: Tensor) -> bool:
        """Whether two scores differ by the rounding of the weights' type only."""
        half = any(tensor.dtype == torch.bfloat16 for tensor in self._weights.tensors.values())
        real = other != float("-inf")  # where an example has a candidate
        one, other = one[real], other[real]
        return bool((one - other).abs().max() <= (5e-2 if half else 2e-4) * (1 + other.abs().max()))

    def _alone(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        return [self._displaced(batch, point) for point in points]

    def _probed(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """All points in one forward, probe-major."""
        probes = len(points)
        inputs = {name: tensor.repeat(probes, 1) for name, tensor in batch.inputs.items()}
        positions = torch.cat([batch.mask_positions] * probes)
        readout = readout_for(batch, self._model, self._readout)
        with self._probes.at(points, batch.rows), readout.reading(positions):
            logits = readout.label_logits(self._model(**inputs, **self._settings).logits)
        return list(logits.chunk(probes))

    def _displaced(self, batch: Batch, point: Move) -> Tensor:
        """One point by itself: every torch function sees the tuned tensors there. Right for any model, and slower."""
        displaced = Displaced(self._weights, self._names, point) if point.terms else nullcontext()
        readout = readout_for(batch, self._model, self._readout)
        with displaced, readout.reading(batch.mask_positions):
            return readout.label_logits(self._model(**batch.inputs, **self._settings).logits)


def _cut(items: Sequence[T], size: int | None) -> Iterator[Sequence[T]]:
    size = size or len(items)
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    for rows in _cut(range(len(batch)), size):
        yield batch.part(slice(rows[0], rows[-1] + 1))

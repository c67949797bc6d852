"""The slow twin of the local engine: a whole perturbed copy of the model for each point, and the plain forward."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from noback.directions import Place, philox, tensor_id
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights, tensor_array


class Plain:
    """Scores as one would without any trick: readable, slow, and what the local engine must equal."""

    def __init__(self, model: Any, weights: Weights, word_ids: Sequence[int] | None) -> None:
        self._model, self._weights, self._word_ids = model.eval(), weights, word_ids

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        return [self._logits(batch, point) for point in points]

    def _logits(self, batch: Batch, point: Move) -> Tensor:
        model = copy.deepcopy(self._model)
        for name, tensor in model.named_parameters():
            if name in self._weights.names:
                matrix = tensor_array(tensor.detach().view(len(tensor), -1))
                place = Place(tensor_id(name), matrix.shape[1])
                matrix[...] = philox.perturbed(matrix, place, self._weights.family, [point])[0]
        logits = model(**batch.inputs).logits
        if self._word_ids is None:
            return logits.float()  # type: ignore[no-any-return]
        words: Tensor = logits[torch.arange(len(batch)), batch.mask_positions][:, list(self._word_ids)]
        return words.float()

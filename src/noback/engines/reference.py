"""The reference engine: a whole perturbed copy of the model for each point, and its plain forward."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noback.directions import Place, philox, tensor_id
from noback.directions.cpu_backend import tensor_array
from noback.engines.by_group import group_by_group
from noback.engines.generation import Writing
from noback.tasks import Batch, Candidates
from noback.values import Move
from noback.weights import Weights


class Reference:
    """Scores as one would without any trick: readable, slow, and what the local engine must equal."""

    def __init__(self, model: Any, weights: Weights, word_ids: Sequence[int] | None, *, features: bool = False) -> None:
        """With `features`, what the decoder is given stands beside the label logits."""
        self._model, self._weights, self._word_ids, self._features = model.eval(), weights, word_ids, features

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        return [self._logits(batch, point) for point in points]

    @torch.inference_mode()
    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of examples at its own points: one group after the other."""
        return group_by_group(self, batch, groups, points)

    @torch.inference_mode()
    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that the model writes after each prompt, at each point: each prompt by itself."""
        texts = []
        for point in points:
            model = self._copy(point)
            texts.append([_written(model, prompt, writing) for prompt in prompts])
        return texts

    def _logits(self, batch: Batch, point: Move) -> Tensor:
        model, given = self._copy(point), list[Tensor]()
        if self._features:
            model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        logits = model(**batch.inputs).logits
        if batch.candidates is not None:
            return _candidate_scores(logits, batch.mask_positions, batch.candidates)
        if self._word_ids is None:
            return logits.float()  # type: ignore[no-any-return]
        where = torch.arange(len(batch)), batch.mask_positions
        parts = [logits[where][:, list(self._word_ids)], *(one[where] for one in given)]
        return torch.cat(parts, dim=1).float()

    def _copy(self, point: Move) -> Any:
        """The whole model at a point."""
        model = copy.deepcopy(self._model)
        for name, tensor in model.named_parameters():
            if name in self._weights.names:
                matrix = tensor_array(tensor.detach().view(len(tensor), -1))
                place = Place(tensor_id(name), matrix.shape[1])
                found = philox.perturbed(matrix, place, self._weights.family, [point])[0]
                mask = self._weights.masks.get(name)
                matrix[...] = found if mask is None else np.where(mask.view(matrix.shape).numpy(), found, matrix)
        return model


def _written(model: Any, prompt: Sequence[int], writing: Writing) -> list[int]:
    """What transformers' own generation gives, up to the token that ends the text or completes a stop string."""
    endings = writing.endings(model)
    found = model.generate(
        torch.tensor([prompt]), do_sample=False, num_beams=1, max_new_tokens=writing.limit, eos_token_id=endings,
        pad_token_id=writing.padding(model),
    )  # fmt: skip
    tokens: list[int] = []
    for token in found[0, len(prompt) :].tolist():
        if token in endings or any(part in writing.tokenizer.decode(tokens) for part in writing.stop):
            break
        tokens.append(token)
    return tokens


def _candidate_scores(logits: Tensor, positions: Tensor, candidates: Candidates) -> Tensor:
    """The mean log-probability of each candidate's tokens, one after the other."""
    scores = torch.full((len(candidates.counts), candidates.width), float("-inf"))
    row = 0
    for example, count in enumerate(candidates.counts):
        for candidate in range(count):
            tokens = [int(token) for token in candidates.targets[row] if token >= 0]
            found = torch.log_softmax(logits[row].float(), dim=-1)
            each = [found[position, token] for position, token in zip(positions[row], tokens, strict=False)]
            scores[example, candidate] = torch.stack(each).mean()
            row += 1
    return scores

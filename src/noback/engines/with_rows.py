"""An engine with a readout on top: the rows' part joins the label logits, at whatever points they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.engines.engine import Engine
from noback.engines.generation import Writing
from noback.engines.readout import decoder_of
from noback.engines.reuse.planning import Tally
from noback.errors import NoReadout
from noback.readouts import LabelRows, Shape
from noback.tasks import Batch
from noback.values import UNPERTURBED, Move
from noback.weights import Weights


class Read(NamedTuple):
    """What a batch gives where the weights stand."""

    logits: Tensor  # [examples, labels], without the readout's part
    features: Tensor  # [examples, width]: what the decoder was given


class WithRows:
    """Scores with an engine that hands out features, and adds what the rows give for them."""

    def __init__(self, engine: Engine, rows: LabelRows) -> None:
        self._engine, self.rows = engine, rows

    @property
    def weights(self) -> Weights:
        """The tuned tensors; the rows are not among them."""
        return self._engine.weights

    def close(self) -> None:
        """The engine's own."""
        self._engine.close()

    def ready(self) -> dict[str, Any]:
        """The engine's own."""
        return self._engine.ready()

    @property
    def tally(self) -> Tally:
        """The engine's own."""
        return self._engine.tally

    @property
    def runs_ahead(self) -> bool:
        """As the engine does: what the rows add is worked out where the model is."""
        return self._engine.runs_ahead

    @torch.inference_mode()
    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """`score` as one tensor [points, examples, labels] where the model is; a GPU is not waited for."""
        found = self._engine.logits(batch, points)
        labels = self.rows.shape.labels
        return self.rows.added(found[..., :labels], found[..., labels:])

    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point with the readout's part in them: on the CPU."""
        return list(self.logits(batch, points).cpu())

    @torch.inference_mode()
    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of the batch's examples at that group's own points."""
        labels, found = self.rows.shape.labels, self._engine.score_groups(batch, groups, points)
        return [[self.rows.added(one[:, :labels], one[:, labels:]) for one in each] for each in found]

    @torch.inference_mode()
    def group_logits(self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]) -> Tensor:
        """The same as one tensor [points, examples, labels] where the model is; a GPU is not waited for."""
        found, labels = self._engine.group_logits(batch, groups, points), self.rows.shape.labels
        return self.rows.added(found[..., :labels], found[..., labels:])

    def read(self, batch: Batch) -> Read:
        """The label logits of a batch where the weights stand, without the readout, and its features: on the CPU."""
        (found,) = self._engine.score(batch, [UNPERTURBED])
        labels = self.rows.shape.labels
        return Read(found[:, :labels], found[:, labels:])

    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """What the engine writes: the rows have no part in it."""
        return self._engine.write(prompts, points, writing)


@torch.inference_mode()
def rows_shape(model: Any, labels: int, inputs: Mapping[str, Tensor]) -> Shape:
    """The shape of a readout for a model, which must answer with what its decoder gives; `inputs`: any prompt."""
    decoder, given = decoder_of(model), list[Tensor]()
    hook = decoder.register_forward_hook(lambda *found: given.append(found[-1]))
    try:
        logits = model(**inputs).logits
    finally:
        hook.remove()
    if len(given) != 1 or not torch.equal(given[0].reshape(-1).to(logits.dtype), logits.reshape(-1)):
        raise NoReadout(
            f"{type(model).__name__} changes what its decoder gives (scales or bounds it), so a readout could not be "
            "written into its rows"
        )
    return Shape(labels, decoder.in_features, decoder.bias is not None)

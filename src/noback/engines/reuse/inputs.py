"""What a forward takes: the model's own inputs, where its answers are read, and the tokens that are scored."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from noback.tasks import Batch

Inputs = Mapping[str, Tensor]
POSITIONS, TARGETS, BACK = "mask_positions", "targets", "back"  # beside the model's own


def plain_inputs(batch: Batch) -> dict[str, Tensor]:
    """Those of a batch as it is."""
    inputs = {**batch.inputs, POSITIONS: batch.mask_positions}
    if batch.candidates is not None:
        inputs[TARGETS] = batch.candidates.targets
    return inputs


def of_the_model(inputs: Inputs) -> dict[str, Tensor]:
    """What the model itself takes."""
    return {name: tensor for name, tensor in inputs.items() if name not in (POSITIONS, TARGETS, BACK)}


def by_row(logits: Tensor, back: Tensor | None, probes: int) -> Tensor:
    """Logits [probes x trees, positions, outputs] as [probes x rows, positions of a row, outputs]."""
    if back is None:
        return logits
    return logits.reshape(probes, -1, logits.shape[-1])[:, back].flatten(0, 1)

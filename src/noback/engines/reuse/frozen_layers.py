"""Frozen layers: those below the first tuned one see one copy of the batch, the others one for each probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from noback.engines.modules.kinds import mapped, replaced_forward
from noback.engines.perturbed import TensorNames


def frozen_layers(model: Any, layers: Sequence[nn.Module], names: TensorNames) -> int:
    """How many layers, from the first, are the same model at every point."""
    if not layers or model.get_input_embeddings().weight in names:
        return 0
    tuned = (index for index, layer in enumerate(layers) if any(tensor in names for tensor in layer.parameters()))
    return next(tuned, 0)  # where no layer is tuned, what comes after them is: nothing is reused


@contextmanager
def widened(layers: Sequence[nn.Module], rows: int, probes: int) -> Iterator[None]:
    """Within, these layers take what is of one copy of the batch as that of all probes, probe-major."""

    def widen(value: Any) -> Any:
        # Masks and positions come to every layer, each time of one copy.
        if not (isinstance(value, Tensor) and value.dim() > 1 and len(value) == rows):
            return value
        rest = value.shape[1:]
        return value.expand(probes, *rest) if rows == 1 else value.repeat(probes, *(1 for _ in rest))

    def wide(forward: Any) -> Any:
        def taken(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = mapped(widen, (args, kwargs))
            return forward(*args, **kwargs)

        return taken

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(replaced_forward(layer, wide(layer.forward)))
        yield

"""The GPU's runner: forwards on a stream of their own, captured from a shape's second time on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noback.adapters import model_limit
from noback.engines.attention import Attention, Own
from noback.engines.cuda.attention import short_rows
from noback.engines.cuda.graphs import Graphs
from noback.engines.reuse.inputs import Inputs, plain_inputs
from noback.engines.runner import Forward, Runner
from noback.engines.trust import Trust
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

_BUCKET = 8  # tokens are padded to a multiple of so many, so that few shapes are seen


def gpu_runner(
    model: Any, weights: Weights, *, tf32: bool, meanwhile: Callable[[], None], captures: bool = True
) -> Runner:
    """The runner of the GPU that the weights are on; `meanwhile` is called while it works.

    `captures`: whether forwards may be captured; what ranks exchange within one cannot.

    Captured forwards want few shapes, and prefix trees come in many: a GPU shares nothing yet.
    """
    graphs = Graphs(weights.device)
    limit, padding = model_limit(model), getattr(model.config, "pad_token_id", None) or 0

    def run(kind: Hashable, points: Sequence[Move], inputs: Inputs, forward: Forward) -> Tensor:
        if not captures:
            return forward(graphs.brought(inputs))
        sweeps = weights.place(points)
        graphs.made_for(sweeps)
        return graphs((sweeps.order(points), kind), inputs, forward)

    return Runner(
        tf32=tf32,
        asynchronous=True,
        shares=False,
        within=partial(_on_the_stream, graphs, weights, tf32=tf32),
        inputs=partial(_padded, limit=limit, padding=padding),
        here=graphs.brought,
        run=run,
        attention=_attention,
        after_a_layer=graphs.cut,
        after_a_score=partial(_outside_inference_mode, meanwhile),
        capturing=lambda: graphs.capturing,
        forget=graphs.forget,
        captured=lambda: graphs.captured,
        refused=lambda: graphs.refused,
    )


@contextmanager
def _on_the_stream(graphs: Graphs, weights: Weights, *, tf32: bool) -> Iterator[None]:
    """Within, work goes to the engine's stream, float32 products in TF32 only where that was asked."""
    weights.look()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    stream, around = graphs.stream, torch.cuda.current_stream(weights.device)
    stream.wait_stream(around)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        around.wait_stream(stream)
        torch.set_float32_matmul_precision(before)


def _padded(batch: Batch, *, limit: int, padding: int) -> dict[str, Tensor]:
    """The batch with tokens up to the next bucket, or to what the model takes."""
    inputs = plain_inputs(batch)
    tokens = inputs["input_ids"].shape[1]
    more = min(-tokens % _BUCKET, max(limit - tokens, 0))
    for name in batch.inputs if more else ():
        inputs[name] = F.pad(inputs[name], (0, more), value=padding if name == "input_ids" else 0)
    return inputs


def _attention(own: Own, trust: Trust) -> Attention:
    """Torch's, with a kernel for short rows; one that is not torch's as it is."""
    return short_rows(own.function, trust) if own.is_torchs else own.function


def _outside_inference_mode(act: Callable[[], None]) -> None:
    with torch.inference_mode(mode=False):  # what is made there is for anyone
        act()

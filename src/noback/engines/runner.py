"""A runner is what a device does in its own way; the defaults are a CPU's, the GPU's are in `cuda/runner.py`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from noback.engines.attention import Attention, Own
from noback.engines.reuse.inputs import Inputs, plain_inputs
from noback.engines.trust import Trust
from noback.tasks import Batch
from noback.values import Move

Forward = Callable[[Inputs], Tensor]


@dataclass(frozen=True, slots=True)
class Runner:
    """Where forwards run."""

    tf32: bool = False  # whether float32 products round their factors
    asynchronous: bool = False  # whether the device works while the host goes on
    shares: bool = True  # whether prefixes and frozen layers are computed once
    within: Callable[[], AbstractContextManager[object]] = nullcontext  # forwards run within
    inputs: Callable[[Batch], dict[str, Tensor]] = plain_inputs  # what a forward takes of a batch, on the host
    here: Callable[[Inputs], Inputs] = lambda inputs: inputs  # the same where the model is
    # A forward's output; the first argument says what besides shapes and points it depends on.
    run: Callable[[Hashable, Sequence[Move], Inputs, Forward], Tensor] = lambda _, __, inputs, forward: forward(inputs)
    attention: Callable[[Own, Trust], Attention] | None = None  # what computes a model's attention; none: its own
    after_a_layer: Callable[[], None] = lambda: None  # called when about a layer of a forward is done
    after_a_score: Callable[[], None] = lambda: None  # called when a score is on its way
    capturing: Callable[[], bool] = lambda: False  # whether a forward is recorded now, not computed
    forget: Callable[[], None] = lambda: None  # give back the memory that is not needed
    captured: Callable[[], tuple[int, ...]] = tuple  # the captured forwards, by the number of their graphs
    refused: Callable[[], str | None] = lambda: None  # why a forward could not be captured

"""Engines: where a model lives and how a batch is scored at displaced points."""

from noback.engines.displaced import Displaced, TensorNames, standing_at
from noback.engines.engine import STILL, Engine
from noback.engines.generation import Writing, generate
from noback.engines.loading import (
    Opened,
    chosen_device,
    is_causal,
    keep_freed_memory,
    model_limit,
    open_classifier,
    open_model,
)
from noback.engines.local import Local
from noback.engines.options import AnyEngine, LocalEngine
from noback.engines.plain import Plain
from noback.engines.readout import by_example, readout_for, readout_of
from noback.engines.sharing import Tally

__all__ = [
    "STILL",
    "AnyEngine",
    "Displaced",
    "Engine",
    "Local",
    "LocalEngine",
    "Opened",
    "Plain",
    "Tally",
    "TensorNames",
    "Writing",
    "by_example",
    "chosen_device",
    "is_causal",
    "generate",
    "keep_freed_memory",
    "model_limit",
    "open_classifier",
    "open_model",
    "readout_for",
    "readout_of",
    "standing_at",
]

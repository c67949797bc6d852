"""Engines: where a model lives and how a batch is scored at displaced points."""

from noback.engines.displaced import Displaced, TensorNames
from noback.engines.engine import STILL, Engine
from noback.engines.loading import (
    Opened,
    chosen_device,
    keep_freed_memory,
    model_limit,
    open_classifier,
    open_model,
)
from noback.engines.local import Local
from noback.engines.plain import Plain
from noback.engines.readout import HeadLogits, MaskedLabelWords

__all__ = [
    "STILL",
    "Displaced",
    "Engine",
    "HeadLogits",
    "Local",
    "MaskedLabelWords",
    "Opened",
    "Plain",
    "TensorNames",
    "chosen_device",
    "keep_freed_memory",
    "model_limit",
    "open_classifier",
    "open_model",
]

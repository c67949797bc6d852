"""Adapters: what is attached to a model, and which of its tensors are tuned."""

from noback.adapters.base import (
    Adapter,
    base_tensors,
    floating,
    is_quantised,
    model_limit,
    refuse_quantised,
    stored_beside,
)
from noback.adapters.full import Full
from noback.adapters.head import Head
from noback.adapters.lora import Lora
from noback.adapters.prefix import Prefix
from noback.adapters.sparse import Sparse

AnyAdapter = Full | Head | Lora | Prefix | Sparse

__all__ = [
    "Adapter",
    "AnyAdapter",
    "Full",
    "Head",
    "Lora",
    "Prefix",
    "Sparse",
    "base_tensors",
    "floating",
    "is_quantised",
    "model_limit",
    "refuse_quantised",
    "stored_beside",
]

"""A base model kept in memory, so that several runs one after the other open its files once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from noback.engines.loading import Opened, open_classifier, open_model


class Models:
    """Opens models as `loading.py` does, and keeps the last one as it was opened; each run gets a copy of its own.

    The copy that is kept lies in the memory of the CPU. A quantised model is opened anew each time.
    """

    def __init__(self) -> None:
        self._kept: tuple[object, Opened] | None = None

    def open_model(
        self, name: str, dtype: str, device: torch.device, *, causal: bool = False, quantise: str | None = None
    ) -> Opened:
        """As `loading.open_model`."""
        if quantise is not None:
            return open_model(name, dtype, device, causal=causal, quantise=quantise)
        return self._copied((name, dtype, causal), device, lambda: open_model(name, dtype, causal=causal))

    def open_classifier(self, name: str, dtype: str, labels: Sequence[str], seed: int, device: torch.device) -> Opened:
        """As `loading.open_classifier`."""
        key = (name, dtype, tuple(labels), seed)
        return self._copied(key, device, lambda: open_classifier(name, dtype, labels, seed))

    def _copied(self, key: object, device: torch.device, open_it: Callable[[], Opened]) -> Opened:
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the next is opened: there is room for one
            opened = open_it()
            if getattr(opened.model, "is_quantized", False):
                return opened._replace(model=opened.model.to(device))
            self._kept = key, opened
        opened = self._kept[1]
        return opened._replace(model=copy.deepcopy(opened.model).to(device))

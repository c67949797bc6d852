"""The rows of a readout: what they add to label logits, and their values as bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noback.readouts.exact import ExactReadout

_STORED = "<f4"


class Shape(NamedTuple):
    """How many label words and features a readout has, and whether each word has a bias."""

    labels: int
    width: int
    biased: bool

    @property
    def columns(self) -> int:
        """The numbers of a label."""
        return self.width + self.biased


class LabelRows:
    """A readout's values; they begin at zero, where the label words answer as they do without it."""

    def __init__(self, readout: ExactReadout, shape: Shape, device: torch.device) -> None:
        self.readout, self.shape = readout, shape
        self._values = torch.zeros(shape.labels, shape.columns, device=device)
        self._is_zero = True

    def added(self, logits: Tensor, features: Tensor) -> Tensor:
        """Label logits [..., labels] with what the rows give for the features [..., width]: float32, where they are."""
        if self._is_zero:
            return logits
        values = self._values.to(logits.device).double()
        more = features.double() @ values[:, : self.shape.width].T
        return (logits.double() + more + (values[:, -1] if self.shape.biased else 0.0)).float()

    def values(self) -> NDArray[np.float32]:
        """The values [labels, columns]: a row for each label, where there are biases with its own last."""
        return self._values.cpu().numpy()

    def take(self, values: NDArray[np.floating]) -> None:
        """Stand at other values, rounded to what a journal holds."""
        self._values = torch.from_numpy(values.astype(np.float32)).to(self._values.device)
        self._is_zero = not bool(values.any())

    def stored(self) -> bytes:
        """The values as a journal holds them."""
        return self.values().astype(_STORED).tobytes()

    def load(self, stored: bytes) -> None:
        """Take values that a journal holds; none: zero."""
        shape = self.shape.labels, self.shape.columns
        self.take(np.frombuffer(stored, _STORED).reshape(shape) if stored else np.zeros(shape, np.float32))

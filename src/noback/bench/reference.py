"""The reference MeZO: four out-of-place sweeps over the weights, and two forwards between them.

Each sweep seeds torch's generator anew and goes over the tensors in the order in which the model names them. It
writes a new tensor for each, so the model's tensors change their place in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Named = Sequence[tuple[str, Tensor]]
Noise = Callable[[str, Tensor], Tensor]


def torch_noise(_name: str, tensor: Tensor) -> Tensor:
    """Standard normal noise in the tensor's own type."""
    return torch.normal(mean=0.0, std=1.0, size=tensor.shape, device=tensor.device, dtype=tensor.dtype)


class ReferenceStep:
    """Takes steps of the published algorithm on the tuned tensors."""

    def __init__(
        self,
        tuned: Named,
        forward: Callable[[], Tensor],
        gold: Tensor,
        *,
        eps: float = 1e-3,
        lr: float = 1e-7,
        noise: Noise = torch_noise,
    ) -> None:
        """`forward` gives label logits [examples, labels] at the weights as they stand."""
        self._tuned, self._forward, self._gold = tuned, forward, gold
        self._eps, self._lr, self._noise = eps, lr, noise

    def __call__(self, seed: int) -> float:
        """One step; its slope."""
        self._walk(seed, 1.0)
        plus = self._loss()
        self._walk(seed, -2.0)
        minus = self._loss()
        slope = ((plus - minus) / (2 * self._eps)).item()
        self._walk(seed, 1.0)
        torch.manual_seed(seed)
        for name, tensor in self._tuned:
            noise = self._noise(name, tensor.data)
            tensor.data = tensor.data - self._lr * (slope * noise)
        return slope

    def _walk(self, seed: int, sides: float) -> None:
        torch.manual_seed(seed)
        for name, tensor in self._tuned:
            noise = self._noise(name, tensor.data)
            tensor.data = tensor.data + sides * noise * self._eps

    def _loss(self) -> Tensor:
        with torch.inference_mode():
            return F.cross_entropy(self._forward(), self._gold).detach()

"""A part of a linear, where ranks hold the others: some outputs, or some inputs, whose partial sums ranks then add.

Some outputs of a plain linear are a plain linear. This is for the rest: partial sums, and weights that lie as
[in, out], or as several of those, such as the queries, keys and values of GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch.nn.functional as F
from torch import Tensor, nn

from noback.engines.modules.kinds import Forward
from noback.engines.modules.linear import products
from noback.engines.modules.probes import Probes

Summed = Callable[[Tensor], Tensor]  # the sum over all ranks of what each has


class Part(nn.Linear):
    """A part of a linear; `in_features` and `out_features` are those of the whole, as adapters beside it need them."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, summed: Summed | None, *, turned: bool) -> None:
        """`summed`: adds partial sums over the ranks; none: some of the outputs are here, each of them whole.

        `turned`: the weight is [in, out], or [parts, in, out] of several that are put side by side.
        """
        super().__init__(1, 1, bias=False, device="meta")
        self.weight, self._turned, self._summed = weight, turned, summed
        self.register_parameter("bias", bias)

    @property
    def shift(self) -> nn.Parameter | None:
        """The bias, which torch's type says is always there."""
        return self._parameters["bias"]

    @property
    def sums(self) -> bool:
        """Whether what its inputs give is added over the ranks."""
        return self._summed is not None

    def forward(self, x: Tensor) -> Tensor:
        """The outputs that are here, or all of them, summed; then the bias, once."""
        y = self.summed(F.linear(x, self.matrix(self.weight)))
        return y if self.shift is None else y + self.shift

    def matrix(self, weight: Tensor) -> Tensor:
        """[..., out, in] of a weight as it lies; before them there may be dimensions of one's own."""
        if not self._turned:
            return weight
        turned = weight.transpose(-1, -2)
        return turned.flatten(-3, -2) if self.weight.dim() > 2 else turned

    def summed(self, y: Tensor) -> Tensor:
        """The outputs from partial sums, where that is what a rank has."""
        return y if self._summed is None else self._summed(y)


def is_part(module: nn.Module) -> TypeGuard[Part]:
    """Whether a module is a part of a linear."""
    return isinstance(module, Part)


def part(probes: Probes, module: Part, _forward: Forward, x: Tensor) -> Tensor:
    """The product for each probe; what is summed over the ranks is that of all probes at once."""
    weight = module.matrix(probes.values(module.weight))
    y = module.summed(products(probes, probes.spread(x), weight, None))
    return shifted(probes, y, None if module.shift is None else probes.bias(module.shift))


def shifted(probes: Probes, y: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs [probes x rows, ..., out] with each probe's bias [probes, 1, out] added."""
    return y if bias is None else (y.view(probes.count, -1, y.shape[-1]) + bias).view(y.shape)

"""Modules that own tuned tensors: P probes x B examples go through each at once, every probe with its own weights.

While a batch is scored, a handler stands in for the module's `forward`. A kind of module is a file and a row below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from noback.engines.modules.conv1d import conv1d, is_conv1d
from noback.engines.modules.embedding import embedding, is_embedding
from noback.engines.modules.kinds import Forward
from noback.engines.modules.linear import is_linear, linear
from noback.engines.modules.lora import is_lora, lora
from noback.engines.modules.norm import is_layer_norm, layer_norm
from noback.engines.modules.other import other
from noback.engines.modules.part import is_part, part
from noback.engines.modules.probes import Handled
from noback.engines.modules.vectors import has_vectors, vectors
from noback.engines.perturbed import TensorNames

HANDLERS: tuple[tuple[Callable[[nn.Module], bool], Forward], ...] = (
    (is_layer_norm, layer_norm),
    (is_linear, linear),
    (is_part, part),
    (is_lora, lora),
    (is_conv1d, conv1d),
    (is_embedding, embedding),
    (has_vectors, vectors),
    (lambda _: True, other),
)


def handled(module: nn.Module) -> Handled:
    """A module with its handler: that of the first row whose test it passes."""
    return module, next(handler for test, handler in HANDLERS if test(module))


def perturbed_modules(model: nn.Module, names: TensorNames, *, deep: bool = False) -> Iterator[nn.Module]:
    """The topmost modules that own a tuned tensor themselves; a LoRA is one with its parts.

    `deep`: a module whose own ones are all also owned below it, as a head's bias is its decoder's, is looked into.
    """
    seen: set[nn.Module] = set()

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        if module in seen:
            return
        seen.add(module)
        tuned = module.parameters() if is_lora(module) else module._parameters.values()
        own = [tensor for tensor in tuned if tensor is not None and tensor in names]
        below = [tensor for child in module.children() for tensor in child.parameters()] if deep and own else []
        if any(all(tensor is not other for other in below) for tensor in own):
            yield module
            return
        for child in module.children():
            yield from walk(child)

    return walk(model)

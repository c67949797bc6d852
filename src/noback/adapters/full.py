"""The model's own weights: all of them, or a chosen part."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch import Tensor, nn

from noback.adapters.base import Adapter, floating, is_quantised, refuse_quantised
from noback.errors import InputError
from noback.options import option


@dataclass(frozen=True, slots=True)
class Full(Adapter):
    """Nothing is attached; the model's own floating-point parameters are tuned."""

    kind: ClassVar[str] = "full"
    tunes_base: ClassVar[bool] = True
    divides: ClassVar[bool] = True
    as_products: ClassVar[bool] = True

    tune: str = option(
        "all",
        "which weights: all, linears, biases, norms, head, last:N layers, or patterns of names such as *.attention.*",
    )

    def __post_init__(self) -> None:
        if not self.tune.strip():
            raise InputError(
                "adapter.tune is empty; expected all, linears, biases, norms, head, last:N or patterns of names"
            )

    def attach(self, model: Any, _fresh: Collection[str], _seed: int) -> dict[str, Tensor]:
        """The tuned tensors by the name they have in the model; a tied one goes by its first name."""
        if is_quantised(model):
            refuse_quantised(self.kind)
        everything = floating(model)
        chosen: dict[str, Tensor] = {}
        for word in dict.fromkeys(part.strip() for part in self.tune.split(",")):
            matches = _chooser(word, model, everything)
            found = {name: tensor for name, tensor in everything.items() if matches(name)}
            if not found:
                raise InputError(f"adapter.tune {word!r} matches no weight; the model has {_some(everything)}")
            chosen |= found
        return chosen

    def save(self, model: Any, folder: str) -> None:
        """The whole model as a Hugging Face folder."""
        model.save_pretrained(folder)


def _chooser(word: str, model: Any, names: Collection[str]) -> Callable[[str], bool]:
    """Whether a weight is meant by a word."""
    linears = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    words: dict[str, Callable[[str], bool]] = {
        "all": lambda _: True,
        "linears": lambda name: name in linears and _layer(name) is not None,  # of layers: not the decoder
        "biases": lambda name: name.endswith("bias"),
        "norms": lambda name: "norm" in name.lower(),
        "head": lambda name: not name.startswith(f"{model.base_model_prefix}."),
    }
    if word in words:
        return words[word]
    last = re.fullmatch(r"last:([0-9]{1,6})", word)
    if last:
        numbers = {layer for layer in map(_layer, names) if layer is not None}
        least = max(numbers, default=-1) + 1 - int(last[1])
        if not numbers or least < 0 or int(last[1]) < 1:
            raise InputError(f"adapter.tune is {word!r}; the model has {len(numbers)} layers")
        return lambda name: (_layer(name) or 0) >= least and _layer(name) is not None
    return lambda name: fnmatchcase(name, word)


def _layer(name: str) -> int | None:
    """The number of the layer that a weight belongs to."""
    found = re.search(r"\.(?:layers?|h|blocks?)\.(\d+)\.", name)
    return int(found[1]) if found else None


def _some(names: Collection[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")

"""The last layer in part: all tokens give it keys and values, and only those that a head reads go on.

A forward of the layer over all tokens ends at its attention. A second one is given the tokens that are read, and its
attention the queries of these with the keys, values and mask of all. 5 % of a step at 12 layers, 3 % at 24.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noback.engines.attention import Attention
from noback.engines.modules.kinds import Forward, mapped, replaced_forward
from noback.engines.perturbed import TensorNames
from noback.engines.readout import layers_of

_MOST = 0.5  # the share of a row's tokens beyond which all are computed


def last_layer(model: Any, names: TensorNames) -> nn.Module | None:
    """The layer that may be computed in part; none where a model has no such layer, or it is probed as a whole."""
    if getattr(model.config, "is_encoder_decoder", False) or model.base_model is model:
        return None
    layers = layers_of(model)
    owners = [part for part in layers[-1].modules() if any(one in names for one in part._parameters.values())]
    return layers[-1] if all(_is_leaf(part) for part in owners) else None


def are_few(positions: Tensor, tokens: int) -> bool:
    """Whether the positions [rows] or [rows, several] are few enough of a row's tokens to compute these alone."""
    return positions.numel() <= _MOST * tokens * len(positions)


class _Reached(Exception):
    """The layer's attention, where its first forward ends."""


class _Given(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None


class OnlyAt:
    """Makes one layer of one forward right at the positions [rows] or [rows, several], and zero elsewhere."""

    def __init__(self, layer: nn.Module, positions: Tensor, own: Attention) -> None:
        """`own`: the model's attention."""
        self._layer, self._own, self._parts = layer, own, set(layer.modules())
        self._places = positions.view(len(positions), -1)
        self._rows = torch.arange(len(positions), device=positions.device)[:, None]
        self._tokens = 0
        self._given: _Given | None = None  # what the first forward gave its attention
        self._ends = False  # whether the layer's forward ends at its attention
        self.cut = False  # whether anything was left out

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, the model runs, with `attention` as its attention."""
        with replaced_forward(self._layer, partial(self._forward, self._layer.forward)):
            yield

    def attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> Any:
        """The model's own, but for the layer that is cut."""
        if self._ends and module in self._parts:
            self._given = _Given(query, key, value, mask)
            raise _Reached
        if not self.cut or module not in self._parts:
            return self._own(module, query, key, value, mask, **options)
        given, self._given = self._given, None
        if given is None or query.shape[2] != self._places.shape[1]:
            raise ValueError("a layer attends more than once, or not to the tokens that it is given")
        causal = options.pop("is_causal", None)
        mask = self._mask(given, causal=getattr(module, "is_causal", True) if causal is None else causal)
        some = given.query[self._rows, :, self._places].transpose(1, 2)
        return self._own(module, some, given.key, given.value, mask, is_causal=False, **options)

    def _forward(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.cut:
            raise ValueError("a layer that is used more than once is not the last one")
        hidden = args[0] if args and isinstance(args[0], Tensor) else self._places
        if hidden.dim() != 3 or len(hidden) != len(self._places) or not are_few(self._places, hidden.shape[1]):
            return forward(*args, **kwargs)
        self._tokens = hidden.shape[1]
        try:
            self._ends = True
            return forward(*args, **kwargs)  # attention is computed by something else: all is done
        except _Reached:
            self.cut = True
        finally:
            self._ends = False
        some_args, some_kwargs = mapped(self._some, (args, kwargs))
        return mapped(self._spread, forward(*some_args, **some_kwargs))

    def _mask(self, given: _Given, *, causal: bool) -> Tensor | None:
        """The mask of the tokens that are read."""
        mask = given.mask
        if mask is not None and mask.shape[-2] > 1:
            of_rows = mask.expand(len(given.query), mask.shape[-3] if mask.dim() > 2 else 1, *mask.shape[-2:])
            return of_rows[self._rows, :, self._places].transpose(1, 2)
        if mask is None and causal:
            if given.key.shape[-2] != self._tokens:
                raise ValueError("a causal layer attends to more than its tokens")
            return (torch.arange(self._tokens, device=given.key.device) <= self._places[:, :, None])[:, None]
        return mask

    def _is_of_all(self, value: Any) -> bool:
        """Whether a tensor has all tokens of all rows, or of one that stands for all."""
        known = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == self._tokens
        return known and len(value) in (1, len(self._places))

    def _some(self, value: Any) -> Any:
        """A tensor at the tokens that are read."""
        if not self._is_of_all(value):
            return value
        return value[self._rows if len(value) > 1 else torch.zeros_like(self._rows), self._places]

    def _spread(self, value: Any) -> Any:
        """[rows, tokens that are read, width] as that of all tokens."""
        if not (isinstance(value, Tensor) and value.shape[:2] == self._places.shape):
            return value
        whole = value.new_zeros(len(value), self._tokens, *value.shape[2:])
        whole[self._rows, self._places] = value
        return whole


def _is_leaf(module: nn.Module) -> bool:
    """Whether all tensors of a module are its own."""
    return not any(True for child in module.children() for _ in child.parameters())

"""The last layer where it is read: all tokens give it keys and values, and only those that a head reads go on.

A forward of the layer over all tokens ends at its attention. A second one is given the tokens that are read, and its
attention the queries of these with the keys, values and mask of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from noback.engines.displaced import TensorNames
from noback.engines.readout import layers_of
from noback.engines.units import Forward, mapped, replaced_forward

_MOST = 0.5  # the share of a row's tokens beyond which all are computed


def last_layer(model: Any, names: TensorNames) -> nn.Module | None:
    """The layer that may be computed in part; none where a model has no such layer, or it is probed as a whole."""
    if getattr(model.config, "is_encoder_decoder", False) or model.base_model is model:
        return None
    layers = layers_of(model)
    return layers[-1] if layers and all(_is_leaf(part) for part in _owners(layers[-1], names)) else None


def are_few(positions: Tensor, tokens: int) -> bool:
    """Whether the positions [rows] or [rows, several] are few enough of a row's tokens to compute these alone."""
    return positions.numel() <= _MOST * tokens * len(positions)


class OnlyAt:
    """Within, a layer's output is right at the positions [rows] or [rows, several], and zero elsewhere."""

    def __init__(self, layer: nn.Module, positions: Tensor) -> None:
        self._layer, self._places = layer, positions.view(len(positions), -1)
        self._replaced = replaced_forward(layer, partial(self._forward, layer.forward))
        self.cut = False  # whether anything was left out

    def __enter__(self) -> OnlyAt:
        self._replaced.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._replaced.__exit__(*exception)

    def _forward(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.cut:
            raise ValueError("a layer that is used more than once is not the last one")
        hidden = args[0] if args and isinstance(args[0], Tensor) else self._places
        if hidden.dim() != 3 or len(hidden) != len(self._places) or not are_few(self._places, hidden.shape[1]):
            return forward(*args, **kwargs)
        parts = _Parts(self._layer, self._places, hidden.shape[1])
        found = parts(forward, args, kwargs)
        self.cut = parts.cut
        return found


class _Reached(Exception):
    """The attention of a layer, and what it was given."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.args_given, self.kwargs = args, dict(kwargs)


class _Attention(TorchFunctionMode):
    """While active, a function stands in for attention."""

    def __init__(self, instead: Callable[..., Tensor]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (self._instead if func is F.scaled_dot_product_attention else func)(*args, **(kwargs or {}))


class _Parts:
    """One forward of a layer in its two parts."""

    def __init__(self, layer: nn.Module, places: Tensor, tokens: int) -> None:
        self._layer, self._places, self._tokens = layer, places, tokens
        self._rows = torch.arange(len(places), device=places.device)[:, None]
        # What the modules gave for all tokens, in turn, so that none is asked again for some of them.
        self._gave: dict[nn.Module, list[Any]] = {}
        self.cut = False

    def __call__(self, forward: Forward, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._modules_remembered():
            try:
                with _Attention(_reached):
                    return forward(*args, **kwargs)  # attention is computed by something else: all is done
            except _Reached as reached:
                given = reached.args_given, reached.kwargs  # the exception itself would hold all that was computed
            self.cut = True
            some_args, some_kwargs = mapped(self._some, (args, kwargs))
            with _Attention(self._attention(*given[0], **given[1])):
                found = forward(*some_args, **some_kwargs)
        return mapped(self._spread, found)

    @contextmanager
    def _modules_remembered(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._layer.modules():
                probed = "forward" in part.__dict__ and part is not self._layer
                if probed or (part._parameters and _is_leaf(part)):
                    stack.enter_context(replaced_forward(part, self._remembered(part, part.forward)))
            yield

    def _remembered(self, module: nn.Module, forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            gave = self._gave.setdefault(module, [])
            if self.cut:
                known = gave.pop(0) if gave else None
                return forward(*args, **kwargs) if known is None else self._some(known)
            output = forward(*args, **kwargs)
            gave.append(output if self._is_of_all(output) and output.dim() == 3 else None)
            return output

        return run

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Callable[..., Tensor]:
        names = ("attn_mask", "dropout_p", "is_causal")
        options = {**dict(zip(names, rest, strict=False)), **kwargs}
        mask, causal = options.pop("attn_mask", None), options.pop("is_causal", False)
        if mask is not None and mask.shape[-2] > 1:
            heads = mask.shape[-3] if mask.dim() > 2 else 1
            of_rows = mask.expand(len(query), heads, *mask.shape[-2:])
            mask = of_rows[self._rows, :, self._places].transpose(1, 2)
        elif causal:
            if key.shape[-2] != self._tokens:
                raise ValueError("a causal layer attends to more than its tokens")
            mask = (torch.arange(self._tokens, device=key.device) <= self._places[:, :, None])[:, None]

        some = query[self._rows, :, self._places].transpose(1, 2)
        asked = 0

        def attention(given: Tensor, *_: Any, **__: Any) -> Tensor:
            nonlocal asked
            asked += 1
            if asked > 1 or given.shape != some.shape:
                raise ValueError("a layer attends more than once, or not to the tokens that it is given")
            return F.scaled_dot_product_attention(some, key, value, attn_mask=mask, **options)

        return attention

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


def _reached(*args: Any, **kwargs: Any) -> Tensor:
    raise _Reached(args, kwargs)


def _owners(layer: nn.Module, names: TensorNames) -> Sequence[nn.Module]:
    """The modules of a layer that own a tuned tensor themselves."""
    return [part for part in layer.modules() if any(one in names for one in part._parameters.values())]


def _is_leaf(module: nn.Module) -> bool:
    """Whether all tensors of a module are its own."""
    return not any(True for child in module.children() for _ in child.parameters())

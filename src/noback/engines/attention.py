"""Another attention function for a model while a forward runs, through the library's own interfaces for it.

`AttentionInterface` and `AttentionMaskInterface` are how transformers lets one bring an attention function and the
masks that it takes. A model that computes attention without them is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

Attention = Callable[..., Any]  # of a module, query, key, value and mask, by the interface's own rules
_NAME = "noback"
_KNOWN = ("sdpa", "noback_prefix")  # functions whose masks are those of torch's attention


class Own(NamedTuple):
    """A model's own attention."""

    function: Attention
    is_torchs: bool  # whether it is torch's, of queries, keys and values alone


class _Active(NamedTuple):
    attention: Attention
    full_masks: bool


_active: ContextVar[_Active] = ContextVar("attention")


def own_attention(model: Any) -> Own | None:
    """The function that computes a model's attention; none where another cannot be put in its place."""
    name = getattr(model.config, "_attn_implementation", None)
    if name not in _KNOWN:
        return None
    attention_functions = _register()
    with quiet():
        model.set_attn_implementation(_NAME)
    taken = model.config._attn_implementation == _NAME
    if taken:
        model.set_attn_implementation(name)
    return Own(attention_functions[name], name == "sdpa") if taken else None


@contextmanager
def overridden(model: Any, attention: Attention, *, full_masks: bool) -> Iterator[None]:
    """Within, the function computes the model's attention.

    `full_masks`: a mask is made even where it hides nothing, and is additive. The library leaves such a mask out where
    it can, but not in a captured forward, which cannot look; without one attention may round otherwise.
    """
    before = model.config._attn_implementation
    token = _active.set(_Active(attention, full_masks))
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        _active.reset(token)


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    return _active.get().attention(module, query, key, value, mask, **options)


def _mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask of torch's attention, by the library."""
    from transformers.masking_utils import sdpa_mask

    if not _active.get().full_masks:
        return sdpa_mask(*args, **options)  # type: ignore[no-any-return]
    mask = sdpa_mask(*args, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    # Torch would do the same to it in every layer.
    added = torch.zeros(mask.shape, dtype=options["dtype"], device=mask.device)
    return added.masked_fill_(~mask, float("-inf"))


def _register() -> Any:
    """The library's table of attention functions, ours among them, with the masks that it takes."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask  # noqa: F401 (asked for now, to fail early)
    except ImportError as error:
        raise ImportError(
            f"transformers has no AttentionInterface, AttentionMaskInterface or sdpa_mask any more ({error}); "
            "noback/engines/attention.py must learn how this version takes an attention function"
        ) from error
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, _mask)
    return AttentionInterface()


@contextmanager
def quiet() -> Iterator[None]:
    """Within, the library does not warn of what is meant: an attention of a model's own, a fresh head."""
    import transformers

    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)

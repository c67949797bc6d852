"""How a model is divided among ranks: which of its linears hold some outputs on each, and which some inputs.

The linears of a layer come in pairs: of the first ones a rank has some outputs (heads, or units of the feed-forward
part), of the second the inputs that belong to these, so that a layer's partial sums meet twice. All else is whole on
every rank. transformers says so of many models (`base_model_tp_plan`); of others the table below does. No model is
left undivided in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from noback.directions.cut import Cut
from noback.errors import InputError

OUT, IN = "colwise", "rowwise"  # the library's words: some outputs, or some inputs, are here
_WHOLE = "replicated_with_grad_allreduce"
_ENCODER = {
    "encoder.layer.*.attention.self.query": OUT,
    "encoder.layer.*.attention.self.key": OUT,
    "encoder.layer.*.attention.self.value": OUT,
    "encoder.layer.*.attention.output.dense": IN,
    "encoder.layer.*.intermediate.dense": OUT,
    "encoder.layer.*.output.dense": IN,
}
_OWN: dict[str, Mapping[str, str]] = {  # by model type; * is the number of a layer
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "opt": {
        "decoder.layers.*.self_attn.q_proj": OUT,
        "decoder.layers.*.self_attn.k_proj": OUT,
        "decoder.layers.*.self_attn.v_proj": OUT,
        "decoder.layers.*.self_attn.out_proj": IN,
        "decoder.layers.*.fc1": OUT,
        "decoder.layers.*.fc2": IN,
    },
    "gpt2": {
        "h.*.attn.c_attn": OUT,
        "h.*.attn.c_proj": IN,
        "h.*.mlp.c_fc": OUT,
        "h.*.mlp.c_proj": IN,
    },
}
_SIDE_BY_SIDE = {"gpt2": ("c_attn", 3)}  # a linear that is several, whose outputs are divided one by one
_COUNTS = {"opt": "num_heads", "gpt2": "split_size"}  # what an attention knows of itself and is less on each rank
_HEADS = ("num_attention_heads", "num_key_value_heads")


class Divided(NamedTuple):
    """A linear of which each rank holds a part."""

    name: str
    module: Any
    turned: bool  # whether its weight is [in, out]
    sums: bool  # whether partial sums are added over the ranks
    weight: list[Cut]  # of each rank
    bias: list[Cut] | None  # none: it has none, or it is whole on every rank and added to the sum


def divided_linears(model: Any, ranks: int) -> list[Divided]:
    """The linears of a model that are divided among ranks; a model that cannot be is refused."""
    kind, config = model.config.model_type, model.config.get_text_config()
    for name in _HEADS:
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ranks:
            raise InputError(
                f"tensor_parallel is {ranks} and the model has {heads} {name.replace('_', ' ').removeprefix('num ')}; "
                f"expected a divisor of {heads}"
            )
    found = [_divided(name, module, how, kind, ranks) for name, module, how in _planned(model, kind)]
    for one in found:
        _check_even(one, ranks)
    return found


def divide_counts(model: Any, ranks: int) -> None:
    """Tell each attention how much of it is here, where it does not see that from its tensors."""
    attribute = _COUNTS.get(model.config.model_type)
    for module in model.modules() if attribute else ():
        if hasattr(module, str(attribute)) and any(isinstance(part, nn.Linear) for part in module.children()):
            setattr(module, str(attribute), getattr(module, str(attribute)) // ranks)


def _planned(model: Any, kind: str) -> Iterator[tuple[str, Any, str]]:
    """The linears that a plan names, and how each is divided."""
    plan = _plan(model, kind)
    modules = dict(model.base_model.named_modules(prefix=model.base_model_prefix))
    for pattern, how in plan.items():
        whole = re.compile(re.escape(f"{model.base_model_prefix}.{pattern}").replace(r"\*", r"\d+"))
        names = [name for name in modules if whole.fullmatch(name)]
        if how not in (OUT, IN, _WHOLE) or not names:
            what = f"divides {pattern!r} as {how!r}" if names else f"names {pattern!r}, which it has not"
            raise InputError(
                f"a {kind} model cannot be divided: its plan in transformers {what}, which noback does not know; "
                "leave out --tensor-parallel"
            )
        yield from ((name, modules[name], how) for name in names if how != _WHOLE)


def _plan(model: Any, kind: str) -> Mapping[str, str]:
    plan = _OWN.get(kind) or getattr(model.config.get_text_config(), "base_model_tp_plan", None)
    if not plan:
        raise InputError(
            f"a {kind} model cannot be divided: neither transformers nor noback has a plan for it; expected one of "
            f"{', '.join(_OWN)}, or a kind with a plan in transformers such as llama or qwen2: "
            "leave out --tensor-parallel"
        )
    return plan


def _divided(name: str, module: Any, how: str, kind: str, ranks: int) -> Divided:
    if not isinstance(module, nn.Linear) and type(module).__name__ != "Conv1D":
        raise InputError(f"{name!r} is a {type(module).__name__}; expected a linear, which can be divided")
    turned = not isinstance(module, nn.Linear)
    shape = tuple(module.weight.shape)
    dimension = int((how == IN) != turned)
    fused, parts = _SIDE_BY_SIDE.get(kind, ("", 1))
    count = parts if name.endswith(f".{fused}") else 1
    bias = None
    if how == OUT and module.bias is not None:
        bias = _cuts(tuple(module.bias.shape), 0, ranks, count)
    return Divided(name, module, turned, how == IN, _cuts(shape, dimension, ranks, count), bias)


def _cuts(shape: tuple[int, ...], dimension: int, ranks: int, parts: int = 1) -> list[Cut]:
    """Each rank's share of every part, the parts one after the other along a dimension."""
    each = shape[dimension] // parts
    return [
        Cut(
            shape,
            dimension,
            tuple(
                (part * each + rank * each // ranks, part * each + (rank + 1) * each // ranks) for part in range(parts)
            ),
        )
        for rank in range(ranks)
    ]


def _check_even(one: Divided, ranks: int) -> None:
    """Refuse parts of different sizes."""
    if len({cut.held for cut in one.weight}) > 1:
        cut = one.weight[0]
        raise InputError(
            f"tensor_parallel is {ranks} and {one.name!r} has {cut.shape[cut.dimension]} "
            f"{'inputs' if one.sums else 'outputs'}; expected a divisor of that"
        )

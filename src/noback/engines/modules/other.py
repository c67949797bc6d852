"""Any other module: its part of the batch for each probe with that probe's weights, then joined."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noback.engines.modules.kinds import Forward
from noback.engines.modules.probes import Probes, installed
from noback.errors import InputError


def other(probes: Probes, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """Within the module every torch function sees the probe's tensors, and handled modules see that probe only."""
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    rows = next((len(value) for value in tensors if probes.is_split(value)), 0)
    if not rows and tensors and probes.is_flat(tensors[0]):
        rows = len(tensors[0])
    if not rows:
        kind = type(module).__name__
        raise InputError(f"a {kind} takes no tensor whose first dimension is the batch; freeze its weights")
    inside, outputs = set(module.modules()) - {module}, []
    nested = [one for one in probes.asked if one[0] in inside]  # a decoder within a head that owns a tensor
    for place, index in enumerate(range(len(probes.points)) if probes.only is None else [probes.only]):
        part_args, part_kwargs = pytree.tree_map(partial(_part, rows, probes.count, place), (args, kwargs))
        with probes.tensors.seen_by_all(index), installed(nested, replace(probes, only=index)):
            outputs.append(forward(*part_args, **part_kwargs))
    return pytree.tree_map(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs)


def _part(rows: int, count: int, place: int, value: Any) -> Any:
    split = isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows
    return value.chunk(count)[place] if split else value

"""A model of which this rank holds a part: made without memory, then filled from its files with what is held here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noback.directions.cut import Cut, Division
from noback.distributed import Group
from noback.engines.division import Divided, divide_counts, divided_linears
from noback.engines.loading import Opened, make_buffers
from noback.engines.modules.part import Part
from noback.engines.stored import Stored, open_stored

Cuts = dict[str, Sequence[Cut]]  # by the name of a parameter: those of every rank


def open_divided(
    name: str, dtype: str, device: torch.device, *, causal: bool, group: Group
) -> tuple[Opened, str, Cuts]:
    """A model with this rank's parts, the digest of the whole one, and how its parameters are cut.

    The files are read in pieces: to name the model all of them, to fill it what is held here.
    """
    opened, stored = open_stored(name, dtype, causal=causal)
    model = opened.model
    linears = divided_linears(model, group.size)
    cuts: Cuts = {}
    for one in linears:
        cuts[f"{one.name}.weight"] = one.weight
        if one.bias is not None:
            cuts[f"{one.name}.bias"] = one.bias
    _fill(model, stored, cuts, device, group.rank)
    make_buffers(model, device, causal=causal)
    for one in linears:
        _replace(model, one, group)
    divide_counts(model, group.size)
    return opened, stored.digest(stored.shapes), cuts


def divide_adapters(
    model: Any, tuned: Mapping[str, Tensor], cuts: Cuts, group: Group
) -> tuple[dict[str, Tensor], Cuts]:
    """The tuned tensors once LoRA matrices beside divided linears are divided as these are, and how they are cut.

    Beside some outputs B is cut as they are and A is whole; beside some inputs A is, and what it gives is summed over
    the ranks before B, which is whole.
    """
    found: Cuts = {name: cut for name, cut in cuts.items() if name in tuned}
    for name, module in model.named_modules():
        held = cuts.get(f"{name}.weight")
        if held is None or not hasattr(module, "lora_A"):
            continue
        sums = isinstance(module.base_layer, Part) and module.base_layer.sums
        table, matrix = (module.lora_A, "lora_A") if sums else (module.lora_B, "lora_B")
        whole = table["default"].weight
        ranges = [one.ranges for one in held]
        mine = [Cut(tuple(whole.shape), int(sums), each) for each in ranges]
        part = nn.Parameter(mine[group.rank].part(whole.detach()), requires_grad=False)
        if sums:
            table["default"] = Part(part, None, group.summed, turned=False)
        else:
            table["default"].weight = part
        found[f"{name}.{matrix}.default.weight"] = mine
    parameters = dict(model.named_parameters())
    return {name: parameters[name] for name in tuned}, found


def division_of(cuts: Cuts, group: Group) -> Division:
    """How tensors are divided among the ranks of a group."""
    return Division(cuts, group.rank, group.gathered)


def _fill(model: Any, stored: Stored, cuts: Cuts, device: torch.device, rank: int) -> None:
    """Put what is held here in the place of each parameter, wherever it stands: tied ones stay one."""
    filled: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        cut = cuts[name][rank] if name in cuts else None
        filled[id(parameter)] = nn.Parameter(stored.part(name, cut).to(device), requires_grad=False)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = filled[id(parameter)]


def _replace(model: Any, one: Divided, group: Group) -> None:
    """Let a module compute with the part of its weight that it has now."""
    if not (one.turned or one.sums):  # some outputs of a plain linear are a plain linear
        return
    whole = one.weight[0].shape
    part = Part(one.module.weight, one.module.bias, group.summed if one.sums else None, turned=one.turned)
    part.in_features, part.out_features = whole if one.turned else whole[::-1]
    parent, _, attribute = one.name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, part.eval())

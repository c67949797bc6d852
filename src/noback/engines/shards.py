"""Safetensors files of a model, written from pieces: the bytes that the library writes from whole tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from noback.directions.cpu_backend import tensor_array
from noback.engines.stored import INDEX, Stored, all_names
from noback.errors import InputError
from noback.files import whole_file, write_whole
from noback.tensor_bytes import safetensors_header

LARGEST = 50 * 10**9  # bytes of a file, as the library has it
_FORM = "model{suffix}.safetensors"
Plan = dict[str, list[tuple[str, str]]]  # file -> (name in the file, name of the parameter)


def written_names(model: Any) -> dict[str, str]:
    """The name under which each parameter is written, in the model's order: of tied ones, the source of the tie."""
    named: dict[str, str] = {}
    for first, names in all_names(model).items():
        kept = [name for name in names if name not in model.all_tied_weights_keys] if len(names) > 1 else names
        if len(kept) != 1:
            raise InputError(f"tensor {first!r} has the names {', '.join(names)}, of which none is the one to write")
        named[kept[0]] = first
    ignored = model._keys_to_ignore_on_save or ()
    return {name: named[name] for name in model.state_dict() if name in named and name not in ignored}


def usual_files(model: Any, largest: int = LARGEST) -> Plan:
    """Which tensors go into which file when the library saves the model."""
    from huggingface_hub import split_torch_state_dict_into_shards

    names, tensors = written_names(model), model.state_dict()
    found = split_torch_state_dict_into_shards(
        {name: tensors[name] for name in names}, filename_pattern=_FORM, max_shard_size=largest
    )
    return {file: [(name, names[name]) for name in inside] for file, inside in found.filename_to_tensors.items()}


def even_files(model: Any, count: int) -> Plan:
    """The tensors in `count` files of about the same size, in the model's order."""
    names, tensors = written_names(model), model.state_dict()
    if not 1 <= count <= len(names):
        raise InputError(f"the model has {len(names)} tensors; expected 1 to {len(names)} parts, found {count}")
    total, before, plan = sum(tensors[name].nbytes for name in names), 0, dict[str, list[tuple[str, str]]]()
    files = [_FORM.format(suffix=f"-{number + 1:05d}-of-{count:05d}") for number in range(count)]
    left = len(names)
    for name, parameter in names.items():
        wished = min(before * count // total, count - 1)
        at = max(
            min(wished, len(plan)), count - left, len(plan) - 1
        )  # every file gets a tensor, and none is passed over
        plan.setdefault(files[at], []).append((name, parameter))
        before, left = before + tensors[name].nbytes, left - 1
    return plan


def write_index(folder: Path, plan: Plan, model: Any, marks: Mapping[str, Any]) -> None:
    """Which file has which tensor, where there are several; `marks`: what else it says of the whole."""
    tensors = model.state_dict()
    size = sum(tensors[name].nbytes for inside in plan.values() for name, _ in inside)
    table = {
        "metadata": {"total_parameters": model.num_parameters(), "total_size": size, **marks},
        "weight_map": {name: file for file, inside in plan.items() for name, _ in inside},
    }
    write_whole(folder / INDEX, json.dumps(table, indent=2, sort_keys=True) + "\n")


def write_tensors(
    path: Path, inside: Sequence[tuple[str, str]], stored: Stored, pieces: Callable[[str], Iterable[Tensor]]
) -> None:
    """One file: `pieces` gives the rows of a parameter, some at a time."""
    ordered = sorted(inside)
    with whole_file(path) as file:
        shapes = {name: stored.shapes[parameter] for name, parameter in ordered}
        file.write(safetensors_header(shapes, stored.dtype, {"format": "pt"}))
        for _, parameter in ordered:
            for rows in pieces(parameter):
                file.write(tensor_array(rows.view(-1)).data)

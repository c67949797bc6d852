"""A base model as its files hold it: its form without memory, and its tensors read in pieces.

A model that is larger than the machine can be replayed this way. Whether it can is decided by names and shapes; where
the library would rename or fuse what it reads, `open_stored` says so and nothing is streamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from noback.adapters import floating
from noback.directions.cpu_backend import tensor_array
from noback.embedded import MODELS
from noback.engines.files import read_table
from noback.engines.loading import Opened, open_model
from noback.errors import DamagedError, InputError
from noback.weights import DTYPES

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PIECE = 2**22  # elements that are in memory at a time, or one row where that has more
_TYPES = ("F32", "BF16", "F16")


class NotStreamed(InputError):
    """A model that cannot be read tensor by tensor, and why."""


class Place(NamedTuple):
    """Where a tensor is stored."""

    file: Path
    name: str


class Piece(NamedTuple):
    """Rows of a tensor; `first` is the tensor's row where they begin."""

    rows: Tensor
    first: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors that stay in their files, in the order of the model, and are read in one type."""

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    places: Mapping[str, Place]

    def size(self, names: Collection[str]) -> int:
        """The bytes of tensors in the type in which they are read."""
        return sum(torch.Size(self.shapes[name]).numel() for name in names) * self.dtype.itemsize

    def pieces(self, name: str) -> Iterator[Piece]:
        """A tensor's rows, some at a time: copies. Each time the file is mapped anew: what was read leaves memory."""
        shape, (path, stored) = self.shapes[name], self.places[name]
        step = max(_PIECE // max(torch.Size(shape[1:]).numel(), 1), 1)
        for first in range(0, shape[0], step):
            try:
                with safe_open(path, framework="pt") as file:
                    rows = file.get_slice(stored)[first : first + step].to(self.dtype, copy=True).contiguous()
            except (OSError, SafetensorError) as error:
                raise DamagedError(f"tensor {stored!r} of {str(path)!r} cannot be read: {error}") from None
            yield Piece(rows, first)

    def digest(self, names: Collection[str]) -> str:
        """What `tensor_bytes.digest` gives for the tensors of these names as a whole."""
        total = hashlib.blake2b(digest_size=16)
        for name in sorted(names):
            total.update(f"{name} {self.dtype} {tuple(self.shapes[name])}\n".encode())
            for piece in self.pieces(name):
                total.update(tensor_array(piece.rows.view(-1)).data)
        return total.hexdigest()

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        pairs = zip(self.pieces(one), self.pieces(other), strict=True)
        return self.shapes[one] == self.shapes[other] and all(torch.equal(a.rows, b.rows) for a, b in pairs)


def open_stored(name: str, dtype: str, *, causal: bool) -> tuple[Opened, Stored]:
    """A base to be read from its files, and its form, which has shapes and no memory."""
    folder = Path(MODELS.get(name, name))
    if not folder.is_dir():
        raise NotStreamed(f"model {name!r} is no folder; download it and name its folder with --model")
    opened = open_model(name, dtype, torch.device("meta"), causal=causal)
    model = opened.model
    if model.device.type != "meta":
        raise NotStreamed("accelerate is missing, without which the library reads whole models; install noback[lora]")
    if getattr(model, "_weight_conversions", None):
        raise NotStreamed(f"model {name!r} is stored in another form than it is used in, {_INSTEAD}")
    places = stored_places(folder)
    _tie(model, Stored(_shapes(model, unique=False), DTYPES[dtype], places))
    stored = Stored(_shapes(model), DTYPES[dtype], _found(model, places))
    _check(name, model, stored)
    return opened, stored


def stored_places(folder: Path) -> dict[str, Place]:
    """Where each tensor of a model's folder is."""
    if (folder / ONE).is_file():
        with safe_open(folder / ONE, framework="pt") as file:
            return {name: Place(folder / ONE, name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    if not (folder / INDEX).is_file():
        raise NotStreamed(f"model folder {str(folder)!r} has neither {ONE} nor {INDEX}; expected one of them")
    files = read_table(folder / INDEX, f"{INDEX} of model {str(folder)!r}")["weight_map"]
    return {name: Place(folder / file, name) for name, file in files.items()}


def all_names(model: Any) -> dict[str, list[str]]:
    """The names of each parameter that several may have, by the first, which is the one that noback uses."""
    firsts: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(firsts.setdefault(id(parameter), name), []).append(name)
    return names


def _shapes(model: Any, *, unique: bool = True) -> dict[str, tuple[int, ...]]:
    named = model.named_parameters(remove_duplicate=unique)
    return {name: tuple(parameter.shape) for name, parameter in named}


def _tie(model: Any, stored: Stored) -> None:
    """Tie what is stored twice and is the same: the library does so where it can compare, which it cannot here."""
    for target, source in model.all_tied_weights_keys.items():
        one, other = model.get_parameter(target), model.get_parameter(source)
        if one is not other and {target, source} <= stored.places.keys() and stored.same(target, source):
            parent, _, attribute = target.rpartition(".")
            setattr(model.get_submodule(parent), attribute, other)


def _found(model: Any, places: Mapping[str, Place]) -> dict[str, Place]:
    """The place of each parameter, under any of its names."""
    found = {}
    for first, names in all_names(model).items():
        stored = next((name for name in names if name in places), None)
        if stored is None:
            raise NotStreamed(f"tensor {first!r} has another name in the model's files, {_INSTEAD}")
        found[first] = places[stored]
    return found


def _check(name: str, model: Any, stored: Stored) -> None:
    """Refuse a base whose files are not, tensor by tensor, the parameters of the model."""
    kept = model.state_dict()
    beside = [one for one, _ in model.named_buffers() if one in kept]
    if beside or stored.shapes.keys() != floating(model).keys():
        raise NotStreamed(
            f"model {name!r} stores buffers or whole numbers beside its weights ({', '.join(beside[:1])})"
        )
    for one, (path, stored_name) in stored.places.items():
        with safe_open(path, framework="pt") as file:
            found = file.get_slice(stored_name)
            shape, kind = tuple(found.get_shape()), found.get_dtype()
        if shape != stored.shapes[one] or not shape or kind not in _TYPES:
            raise NotStreamed(f"tensor {one!r} is stored as {kind} {shape}; expected numbers of {stored.shapes[one]}")
        if model.get_parameter(one).dtype != stored.dtype:
            raise NotStreamed(f"tensor {one!r} stays in another type than the run's; leave out --stream")


_INSTEAD = (
    "so it cannot be streamed; write it anew with transformers (from_pretrained, then save_pretrained), "
    "or leave out --stream"
)

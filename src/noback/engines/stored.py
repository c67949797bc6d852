"""A base model as its files hold it: its form without memory, and its tensors read in pieces.

A model that is larger than the machine can be replayed this way. Whether it can is decided by names and shapes; where
the library would rename or fuse what it reads, `open_stored` says so and nothing is streamed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from noback.adapters import floating
from noback.directions.cpu_backend import tensor_array
from noback.directions.cut import Cut
from noback.embedded import MODELS
from noback.engines.files import read_table
from noback.engines.loading import Opened, open_model
from noback.errors import DamagedError, InputError
from noback.weights import DTYPES

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PIECE = 2**22  # elements that are in memory at a time, or one row where that has more
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class NotStreamed(InputError):
    """A model that cannot be read tensor by tensor, and why."""


class Place(NamedTuple):
    """Where a tensor is stored: the file, its first byte there, its shape and type."""

    file: Path
    begin: int
    shape: tuple[int, ...]
    kind: str


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

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[Piece]:
        """A tensor's rows, some at a time; they are read, not mapped, so that what was read leaves memory."""
        place = self.places[name]
        width = torch.Size(place.shape[1:]).numel()
        step = max(_PIECE // width, 1)
        last = place.shape[0] if end is None else end
        for first in range(begin, last, step):
            shape = (min(step, last - first), *place.shape[1:])
            yield Piece(_as(self.dtype, _read(place, first * width, shape)), first)

    def part(self, name: str, cut: Cut | None = None) -> Tensor:
        """What a cut holds of a tensor, or the whole of it; of rows, no others are read."""
        shape = self.shapes[name]
        cut = cut or Cut(shape, 0, ((0, shape[0]),))
        held = torch.empty(cut.held, dtype=self.dtype, device="cpu")
        for (begin, end), (view, _) in zip(cut.ranges, cut.pieces(held, 0), strict=True):
            if cut.dimension == 0:
                for rows, first in self.pieces(name, begin, end):
                    view[first - begin : first - begin + len(rows)] = rows
            else:
                for rows, first in self.pieces(name):
                    view[first : first + len(rows)] = rows.narrow(1, begin, end - begin)
        return held

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
        return _places(folder / ONE)
    if not (folder / INDEX).is_file():
        raise NotStreamed(f"model folder {str(folder)!r} has neither {ONE} nor {INDEX}; expected one of them")
    files = read_table(folder / INDEX, f"{INDEX} of model {str(folder)!r}")["weight_map"]
    found = {file: _places(folder / file) for file in sorted(set(files.values()))}
    try:
        return {name: found[file][name] for name, file in files.items()}
    except KeyError as error:
        raise DamagedError(f"tensor {error} is not in the file that {str(folder / INDEX)!r} names") from None


def _places(path: Path) -> dict[str, Place]:
    """Where each tensor of a file is; the file's own library has looked at its table first."""
    try:
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(length))
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"{str(path)!r} cannot be read: {error}") from None
    table.pop("__metadata__", None)
    return {
        name: Place(path, 8 + length + entry["data_offsets"][0], tuple(entry["shape"]), entry["dtype"])
        for name, entry in table.items()
    }


def _read(place: Place, offset: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers of a tensor from its element `offset` on."""
    rows = _room(shape, _TYPES[place.kind])
    with place.file.open("rb", buffering=0) as file:
        file.seek(place.begin + offset * rows.itemsize)
        view: memoryview = rows.view(-1).view(torch.uint8).numpy().data
        while view:
            count = file.readinto(view)
            if not count:
                raise DamagedError(f"{str(place.file)!r} ends before its last tensor; put the whole file back")
            view = view[count:]
    return rows


def _as(dtype: torch.dtype, rows: Tensor) -> Tensor:
    return rows if rows.dtype == dtype else _room(tuple(rows.shape), dtype).copy_(rows)


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory that goes back to the system with the tensor; what malloc gives stays, a little more with each piece."""
    count = torch.Size(shape).numel()
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)


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
    for one, place in stored.places.items():
        if place.shape != stored.shapes[one] or 0 in (*place.shape, len(place.shape)) or place.kind not in _TYPES:
            raise NotStreamed(
                f"tensor {one!r} is stored as {place.kind} {place.shape}; expected {stored.shapes[one]} of "
                + " or ".join(_TYPES)
            )
        if model.get_parameter(one).dtype != stored.dtype:
            raise NotStreamed(f"tensor {one!r} stays in another type than the run's, which needs all of it at once")


_INSTEAD = (
    "so it cannot be read in pieces; write it anew with transformers (from_pretrained, then save_pretrained), "
    "or leave out --stream or --tensor-parallel"
)

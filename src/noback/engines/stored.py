"""A base model as its files hold it: its form without memory, and its tensors read in pieces.

A model that is larger than the machine can be replayed this way. Whether it can is decided by a check of names and
shapes; where the library would rename, tie or fuse what it reads, `StoredModel.open` says so and nothing is streamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from noback.adapters import floating
from noback.directions.cpu_backend import tensor_array
from noback.embedded import MODELS
from noback.engines.loading import Opened, open_model
from noback.errors import DamagedError, InputError
from noback.weights import DTYPES

PIECE = 2**24  # elements that are in memory at a time, or one row where that has more
_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class NotStreamed(InputError):
    """A run whose weights cannot be made tensor by tensor, and why."""


class Piece(NamedTuple):
    """Rows of a tensor in the run's type; `first` is the tensor's row where they begin."""

    rows: Tensor
    first: int


class StoredModel:
    """A base whose tensors stay in its files; `opened.model` has shapes and no memory."""

    def __init__(self, opened: Opened, files: dict[str, Path], dtype: torch.dtype) -> None:
        self.opened, self.dtype, self._files = opened, dtype, files
        parameters = dict(opened.model.named_parameters())
        order = [name for name in opened.model.state_dict() if name in parameters]
        self.shapes = {name: tuple(parameters[name].shape) for name in order}

    def size(self, name: str) -> int:
        """The bytes of a tensor in the run's type."""
        return torch.Size(self.shapes[name]).numel() * self.dtype.itemsize

    def pieces(self, name: str) -> Iterator[Piece]:
        """The tensor's rows in the run's type, some at a time."""
        shape = self.shapes[name]
        step = max(PIECE // max(torch.Size(shape[1:]).numel(), 1), 1)
        try:
            with safe_open(self._files[name], framework="pt") as file:
                stored = file.get_slice(name)
                for first in range(0, shape[0], step):
                    yield Piece(stored[first : first + step].to(self.dtype).contiguous(), first)
        except (OSError, SafetensorError) as error:
            raise DamagedError(f"tensor {name!r} of the base model cannot be read: {error}") from None

    def digest(self) -> str:
        """What `tensor_bytes.digest` gives for the whole model."""
        return digest_of(self.shapes, self.dtype, self.pieces, self.shapes)


def digest_of(shapes: Any, dtype: torch.dtype, pieces: Any, names: Collection[str]) -> str:
    """BLAKE2b over tensors in the order of their names, piece by piece: the digest of the whole tensors."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(names):
        total.update(f"{name} {dtype} {tuple(shapes[name])}\n".encode())
        for piece in pieces(name):
            total.update(tensor_array(piece.rows.view(-1)).data)
    return total.hexdigest()


def open_stored(name: str, dtype: str, *, causal: bool) -> StoredModel:
    """A base to be read from its files; one whose tensors the library would change as it reads them is refused."""
    folder = Path(MODELS.get(name, name))
    if not folder.is_dir():
        raise NotStreamed(f"model {name!r} is no folder; download it and name its folder with --model")
    opened = open_model(name, dtype, torch.device("meta"), causal=causal)
    if opened.model.device.type != "meta":
        raise NotStreamed("accelerate is missing, without which the library reads the whole model; install noback[lora]")
    stored = StoredModel(opened, _files(folder), DTYPES[dtype])
    _check(stored, _files(folder))
    return stored


def header_of(shapes: dict[str, tuple[int, ...]], names: Collection[str], dtype: torch.dtype) -> bytes:
    """The first bytes of a safetensors file as the library writes it: tensors of one type in the order of names."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(names):
        begin, end = end, end + torch.Size(shapes[name]).numel() * dtype.itemsize
        table[name] = {"dtype": _CODES[dtype], "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _files(folder: Path) -> dict[str, Path]:
    """The file of each stored tensor."""
    if (folder / _ONE).is_file():
        with safe_open(folder / _ONE, framework="pt") as file:
            return dict.fromkeys(file.keys(), folder / _ONE)
    if not (folder / _INDEX).is_file():
        raise NotStreamed(f"model folder {str(folder)!r} has neither {_ONE} nor {_INDEX}")
    return {name: folder / file for name, file in json.loads((folder / _INDEX).read_text())["weight_map"].items()}


def _check(stored: StoredModel, files: dict[str, Path]) -> None:
    """Refuse a base whose files are not, name by name and shape by shape, the parameters of the model."""
    model, names = stored.opened.model, set(stored.shapes)
    buffers = {name for name, _ in model.named_buffers() if name in model.state_dict()}
    if buffers or names != set(floating(model)):
        raise NotStreamed(f"the model stores buffers or whole numbers beside its weights ({min(buffers, default='')})")
    other = sorted(names ^ set(files))
    if other:
        raise NotStreamed(f"tensor {other[0]!r} has another name in the model's files than in the model, or is tied")
    for name, path in files.items():
        with safe_open(path, framework="pt") as file:
            found = file.get_slice(name)
            if tuple(found.get_shape()) != stored.shapes[name] or not stored.shapes[name]:
                raise NotStreamed(f"tensor {name!r} has another shape in the model's files than in the model")
            if found.get_dtype() not in ("F32", "BF16", "F16"):
                raise NotStreamed(f"tensor {name!r} is stored as {found.get_dtype()}")

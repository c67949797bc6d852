"""Tensors as bytes: their digest, and small ones as text in a journal's header."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noback.directions.cpu_backend import tensor_array
from noback.errors import DamagedError

_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """BLAKE2b (128 bits) over the tensors in the order of their names."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor_array(tensor.view(-1)).data)
    return total.hexdigest()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    marks: Mapping[str, str],
) -> None:
    """A safetensors file of tensors of one type, asked for one by one in the order of their names."""
    with open(path, "xb") as file:
        file.write(safetensors_header(shapes, dtype, marks))
        for name in sorted(shapes):
            file.write(tensor_array(tensors[name].detach().contiguous().cpu().view(-1)).data)


def safetensors_header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, marks: Mapping[str, str]) -> bytes:
    """The first bytes of a file: its table in the order of names, padded to eight bytes, after the table's length."""
    table: dict[str, Any] = {"__metadata__": dict(marks)}
    end = 0
    for name in sorted(shapes):
        begin, end = end, end + torch.Size(shapes[name]).numel() * dtype.itemsize
        table[name] = {"dtype": _CODES[dtype], "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def rounded_start(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors at the precision in which a journal keeps a start that cannot be made again: bfloat16."""
    return {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name, tensor in tensors.items()}


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Small tensors of bfloat16 precision as JSON holds them: shape and compressed bytes."""
    return {
        name: {
            "shape": list(tensor.shape),
            "bytes": base64.b64encode(
                zlib.compress(tensor_array(tensor.to("cpu", torch.bfloat16)).tobytes(), 9)
            ).decode(),
        }
        for name, tensor in sorted(tensors.items())
    }


def unpacked(table: Any, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `packed` was given: of the names, shapes and types of `like`, and never larger."""
    if not isinstance(table, Mapping) or table.keys() != like.keys():
        raise DamagedError("the start that the journal holds is of other tensors than the adapter has; it is damaged")
    return {name: _unpacked(name, table[name], tensor) for name, tensor in like.items()}


def _unpacked(name: str, entry: Any, like: Tensor) -> Tensor:
    try:
        shape, text = entry["shape"], entry["bytes"]
        if shape != list(like.shape):
            raise ValueError(f"its shape is {str(shape)[:60]}, expected {list(like.shape)}")
        expanding, size = zlib.decompressobj(), 2 * like.numel()
        data = expanding.decompress(base64.b64decode(text, validate=True), size)
        more = expanding.decompress(expanding.unconsumed_tail, 1)
        if len(data) != size or more or expanding.unused_data or not expanding.eof:
            raise ValueError(f"it does not have {size} bytes")
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise DamagedError(f"tensor {name!r} of the start that the journal holds is damaged: {error}") from None
    words = torch.from_numpy(np.frombuffer(data, dtype=np.int16).copy())
    return words.view(torch.bfloat16).view(like.shape).to(like.dtype)

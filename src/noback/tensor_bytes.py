"""Tensors as bytes: their digest, and small ones as text in a journal's header."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noback.directions.cpu_backend import tensor_array


def digest(tensors: Mapping[str, Tensor]) -> str:
    """BLAKE2b (128 bits) over the tensors in the order of their names."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor_array(tensor.view(-1)).data)
    return total.hexdigest()


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


def unpacked(table: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that `packed` was given."""
    found = {}
    for name, entry in table.items():
        words = np.frombuffer(zlib.decompress(base64.b64decode(entry["bytes"])), dtype=np.int16).copy()
        found[name] = torch.from_numpy(words).view(torch.bfloat16).view(entry["shape"])
    return found

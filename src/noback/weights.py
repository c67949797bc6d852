"""The tuned tensors by name: perturbed beside themselves, moved in place, and summed up in a digest."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from noback import directions
from noback.directions import FAMILIES, Place, tensor_id
from noback.directions.on_gpu import GpuSweeps, gpu_sweeps, move_along, tensor_array
from noback.errors import InputError
from noback.options import one_of
from noback.values import Move

_SAMPLED = 4096  # weights of a tensor that are looked at to see whether an update changed them
_GROUPED = 2**24  # bytes, all points counted, that are perturbed together
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Weights:
    """The tuned tensors of a model; only `advance` and `load` write them."""

    def __init__(self, tensors: Mapping[str, Tensor], noise: Any = "normal") -> None:
        noise = getattr(noise, "kind", noise)
        one_of("noise", noise, FAMILIES)
        if not tensors:
            raise InputError("the model has no tensor to tune")
        # The model's own tensor objects: a model that is cast or moved takes its storage along.
        # In the model's own order, in which the biases of queries, keys and values lie side by side.
        self._tensors = dict(tensors)
        self.family = FAMILIES[noise]
        self._ids = _tensor_ids(self._tensors)
        self._places: dict[str, tuple[object, tuple[NDArray[Any], Place]]] = {}
        self._on_gpu: tuple[object, GpuSweeps] | None = None
        for name, tensor in self.tensors.items():
            _check(name, tensor)
        devices = {tensor.device for tensor in self._tensors.values()}
        if len(devices) > 1:
            raise InputError(f"the tuned tensors are on {', '.join(map(str, devices))}; expected one device")

    @property
    def names(self) -> Collection[str]:
        """The names of the tuned tensors."""
        return self._tensors.keys()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tuned tensors by name, sharing their memory with the model."""
        return {name: tensor.detach() for name, tensor in self._tensors.items()}

    @property
    def device(self) -> torch.device:
        """Where the tuned tensors are."""
        return next(iter(self._tensors.values())).device

    def look(self) -> None:
        """On a GPU, see where the tensors are now: a model that was cast or moved needs other sweeps."""
        if self.device.type != "cpu":
            self._gpu(look=True)

    def place(self, points: Sequence[Move]) -> GpuSweeps:
        """On a GPU, write the points where a captured forward that was made for their like reads them.

        Other sweeps than the last time mean that the weights have moved, and what was captured is void.
        """
        sweeps = self._gpu()
        sweeps.placed(points)
        return sweeps

    def perturbed(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, *, only: int | None = None
    ) -> Tensor:
        """The tensor (or its chosen rows, ascending) at each point, or at one, beside it: [points, *shape]."""
        with torch._C.DisableTorchFunction():  # no function mode sees the tensor as it stands
            tensor = self._tensors[name].detach()
            count = len(tensor) if rows is None else len(rows)
            chosen = points if only is None else [points[only]]
            out = tensor.new_empty((len(chosen), count, *tensor.shape[1:]))
            if tensor.device.type != "cpu":
                self._perturb_on_gpu(out, name, points, rows, only)
                return out
            if rows is not None and count and not (rows[0] >= 0 and rows[-1] < len(tensor)):
                raise IndexError(f"rows {int(rows[0])} to {int(rows[-1])} of {name!r}, which has {len(tensor)}")
            directions.perturb(
                tensor_array(out.view(len(chosen), count, -1)),
                *self._placed(name),
                self.family,
                chosen,
                rows=None if rows is None else rows.numpy(),
                threads=torch.get_num_threads(),
            )
            return out

    def small(self, points: Sequence[Move]) -> dict[str, Tensor]:
        """On a GPU, the tensors that one launch perturbs together: [points, *shape]; on a CPU none."""
        if self.device.type == "cpu":
            return {}
        with torch._C.DisableTorchFunction():
            sweeps = self._gpu()
            return self._by_name(sweeps.small(sweeps.placed(points)))

    def groups(
        self, names: Sequence[str], points: int, together: Sequence[Sequence[str]] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Small tensors that are used one after the other and can be perturbed together, by each name.

        The tensors of each set in `together` go with one another if they can, in this object's order, whatever they
        take.
        """
        sweeps, parts = None if self.device.type == "cpu" else self._gpu(), list(self._tensors)
        sets = {name: tuple(sorted(names, key=parts.index)) for names in together for name in names}
        found: list[list[str]] = [[]]
        held, dtype = 0, None  # of the last group
        for some in dict.fromkeys(sets.get(name, (name,)) for name in names):  # a model may use a tensor more than once
            tensors = [self._tensors[name] for name in some]
            needed = points * sum(tensor.nbytes for tensor in tensors)
            alone = sweeps is not None and not all(sweeps.can_group(parts.index(name)) for name in some)
            if alone or needed > _GROUPED // 2:
                found += [[] if alone else list(some), []]
                held = 0
                continue
            if found[-1] and (tensors[0].dtype != dtype or held + needed > _GROUPED):
                found.append([])
                held = 0
            found[-1] += some
            held, dtype = held + needed, tensors[0].dtype
        groups = [tuple(group) for group in found if len(group) > 1]
        if sweeps is not None:
            for group in groups:
                sweeps.prepare([parts.index(name) for name in group])
        return {name: group for group in groups for name in group}

    def perturbed_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """The tensors of a group at each point, in one launch or shared out to the threads: [points, *shape]."""
        if self.device.type == "cpu":
            return self._perturbed_on_cpu(names, points)
        with torch._C.DisableTorchFunction():
            sweeps, parts = self._gpu(), list(self._tensors)
            return self._by_name(sweeps.group([parts.index(name) for name in names], sweeps.placed(points)))

    def _perturbed_on_cpu(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        with torch._C.DisableTorchFunction():
            found = {name: self._tensors[name].new_empty((len(points), *self._tensors[name].shape)) for name in names}
            parts = [
                (tensor_array(out.view(len(points), len(out[0]), -1)), *self._placed(name))
                for name, out in found.items()
            ]
            directions.perturb_together(parts, self.family, points, threads=torch.get_num_threads())
            return found

    def _by_name(self, found: Mapping[int, Tensor]) -> dict[str, Tensor]:
        names = list(self._tensors)
        return {names[part]: value.view(-1, *self._tensors[names[part]].shape) for part, value in found.items()}

    def looked_up(self, name: str, points: Sequence[Move], ids: Tensor, *, only: int | None = None) -> Tensor:
        """Row `ids[...]` of an embedding, the ids of each point one after the other: [*ids, columns]."""
        with torch._C.DisableTorchFunction():
            tensor = self._tensors[name].detach()
            chosen = points if only is None else [points[only]]
            if tensor.device.type != "cpu":
                out = tensor.new_empty((ids.numel(), *tensor.shape[1:]))
                self._look_up_on_gpu(out, name, points, ids.reshape(-1), only)
                return out.view(*ids.shape, *tensor.shape[1:])
            rows, places = torch.unique(ids, return_inverse=True)
            table = self.perturbed(name, chosen, rows)  # only the rows that are used
            offset = torch.arange(len(chosen))[:, None] * len(rows)
            flat = (places.reshape(len(chosen), -1) + offset).reshape(places.shape)
            return F.embedding(flat, table.flatten(0, 1))

    def _perturb_on_gpu(
        self, out: Tensor, name: str, points: Sequence[Move], rows: Tensor | None, only: int | None
    ) -> None:
        if rows is not None:
            self._look_up_on_gpu(out.flatten(0, 1), name, points, rows.repeat(len(out)), only)
            return
        sweeps, matrix = self._gpu(), self._matrix(name)
        sweeps.perturb(out.view(len(out), *matrix.shape), matrix, self._place(name), sweeps.placed(points), only)

    def _look_up_on_gpu(self, out: Tensor, name: str, points: Sequence[Move], rows: Tensor, only: int | None) -> None:
        sweeps, matrix = self._gpu(), self._matrix(name)
        sweeps.look_up(out.view(len(out), -1), matrix, self._place(name), sweeps.placed(points), rows, only)

    def advance(self, moves: Sequence[Move]) -> None:
        """Apply the moves in their order, in one pass over each tensor."""
        if self.device.type != "cpu":
            self._gpu(look=True).advance(moves)
            return
        threads = torch.get_num_threads()
        if all(move.decay == 1.0 for move in moves):
            directions.advance([self._placed(name) for name in self._tensors], self.family, moves, threads=threads)
            return
        spared = [Move(move.terms) for move in moves]
        for decayed, mine in ((True, moves), (False, spared)):
            parts = [self._placed(name) for name in self._tensors if is_decayed(name) is decayed]
            directions.advance(parts, self.family, mine, threads=threads)

    def advance_along(self, seeds: Sequence[int], coefficients: Tensor, decay: float) -> None:
        """Apply one move whose coefficients, float64 [seeds], are where the tensors are; a GPU is not waited for."""
        if self.device.type != "cpu":
            self._gpu(look=True).advance_along(seeds, coefficients, decay)
            return
        self.advance([move_along(seeds, coefficients, decay)])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with others of the same names, shapes and dtypes."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    def norm(self) -> float:
        """The length of all tuned tensors as one vector."""
        lengths = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in self.tensors.values()]
        return math.sqrt(float((torch.stack(lengths).double() ** 2).sum()))

    @property
    def size(self) -> int:
        """How many weights are tuned."""
        return sum(tensor.numel() for tensor in self._tensors.values())

    def sample(self) -> dict[str, Tensor]:
        """A copy of the first few weights of each tensor."""
        return {name: tensor.view(-1)[:_SAMPLED].clone() for name, tensor in self.tensors.items()}

    def changed_share(self, before: Mapping[str, Tensor]) -> float:
        """The share of weights that differ from a sample taken before, each tensor counted by its size."""
        after = self.sample()
        changed = (
            float((after[name] != before[name]).float().mean()) * tensor.numel()
            for name, tensor in self._tensors.items()
        )
        return sum(changed) / self.size

    def digest(self) -> str:
        """BLAKE2b over every tuned tensor's name, dtype, shape and bytes."""
        return digest(self.tensors)

    def _matrix(self, name: str) -> Tensor:
        tensor = self._tensors[name].detach()
        return tensor.view(len(tensor), -1)

    def _place(self, name: str) -> Place:
        tensor = self._tensors[name]
        return Place(self._ids[name], tensor.numel() // len(tensor))

    def _placed(self, name: str) -> tuple[NDArray[Any], Place]:
        """The tensor's memory as a matrix, and its place in the noise; made anew when the storage has changed."""
        tensor = self._tensors[name]
        storage, placed = self._places.get(name, (None, None))
        if placed is None or storage != (tensor.data_ptr(), tensor.dtype):
            placed = tensor_array(self._matrix(name)), self._place(name)
            self._places[name] = ((tensor.data_ptr(), tensor.dtype), placed)
        return placed

    def _gpu(self, *, look: bool = False) -> GpuSweeps:
        """The sweeps on the tensors' GPU; with `look`, made anew where a storage has changed."""
        if self._on_gpu is not None and not look:
            return self._on_gpu[1]
        storage = list(map(Tensor.data_ptr, self._tensors.values()))
        if self._on_gpu is None or self._on_gpu[0] != storage:
            parts = [(self._matrix(name), self._place(name), is_decayed(name)) for name in self._tensors]
            self._on_gpu = (storage, gpu_sweeps(parts, self.family))
        return self._on_gpu[1]


def is_decayed(name: str) -> bool:
    """Whether weight decay applies to the tensor: not to biases and norms."""
    lower = name.lower()
    return not any(part in lower for part in ("bias", "norm"))


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


def _tensor_ids(names: Mapping[str, Any], identify: Callable[[str], int] = tensor_id) -> dict[str, int]:
    ids: dict[int, str] = {}
    for name in names:
        other = ids.setdefault(identify(name), name)
        if other != name:
            raise InputError(f"tensors {other!r} and {name!r} have the same noise id; rename one of them")
    return {name: number for number, name in ids.items()}


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES.values():
        raise InputError(f"tensor {name!r} is {tensor.dtype}; tuned tensors are float32 or bfloat16: convert the model")
    if tensor.device.type not in ("cpu", "cuda"):
        raise InputError(f"tensor {name!r} is on {tensor.device}; noback runs on a CPU or a CUDA GPU: move the model")
    if not tensor.is_contiguous() or tensor.dim() == 0 or tensor.numel() == 0:
        raise InputError(
            f"tensor {name!r} of shape {tuple(tensor.shape)} cannot be tuned: it is empty or not contiguous"
        )

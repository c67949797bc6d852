"""The tuned tensors by name: perturbed beside themselves, moved in place, and summed up in a digest."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noback.directions import FAMILIES, Noise, Place, check_noise, tensor_id
from noback.directions.adapting import Adapting, Moments
from noback.directions.backend import Backend, Part, Products, backend_for
from noback.directions.cut import ALONE, Division, Wholes
from noback.directions.masked import Masked
from noback.errors import DamagedError, InputError
from noback.options import one_of
from noback.tensor_bytes import digest
from noback.values import Move, Term

_SAMPLED = 4096  # weights of a tensor that are compared to see whether an update changed them
_THIN = 4  # rows and columns for each product: fewer, and the perturbed tensor is as small as they are
_GROUPED = 2**24  # bytes, all points counted, that are perturbed together
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Weights:
    """The tuned tensors of a model; only `advance`, `advance_along` and `load` write them."""

    def __init__(
        self, tensors: Mapping[str, Tensor], noise: Noise | str = "normal", division: Division = ALONE,
        masks: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`division`: which parts of whole tensors some of them are; they move as those parts of the whole would.

        `masks`: which weights of each tensor are tuned; none: all.
        """
        self.masks, self._moments = dict(masks or {}), dict[str, Moments]()
        self.division, self._pieces = division, dict[str, tuple[str, ...]]()
        self.family = _noise_of(noise)
        if not tensors:
            raise InputError("the model has no tensor to tune")
        # The model's own tensor objects: a model that is cast or moved takes its storage along.
        # In the model's own order, in which the biases of queries, keys and values lie side by side.
        self._tensors = dict(tensors)
        self._ids = _tensor_ids(self._tensors)
        for name, tensor in self._tensors.items():
            _check(name, tensor)
        devices = {tensor.device for tensor in self._tensors.values()}
        if len(devices) > 1:
            raise InputError(f"the tuned tensors are on {', '.join(map(str, devices))}; expected one device")
        self._storage: list[int] = []
        self._chosen: Backend | None = None
        self._watching: list[Callable[[Sequence[Move] | None], None]] = []
        self.writes = 0  # how often they were written: as long as it stays, so do they

    @property
    def names(self) -> Collection[str]:
        """The names of the tuned tensors."""
        return self._tensors.keys()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tuned tensors by name, sharing their memory with the model."""
        return {name: tensor.detach() for name, tensor in self._tensors.items()}

    @property
    def wholes(self) -> Mapping[str, Tensor]:
        """The tuned tensors, whole: where ranks hold parts, each is put together by all of them as it is asked for."""
        return Wholes(self.tensors, self.division) if self.is_divided else self.tensors

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the whole tensors."""
        return {name: self.division.shape(name, tensor) for name, tensor in self._tensors.items()}

    @property
    def is_divided(self) -> bool:
        """Whether other ranks hold other parts of some of the tensors."""
        return bool(self.division.cuts)

    @property
    def device(self) -> torch.device:
        """Where the tuned tensors are."""
        return next(iter(self._tensors.values())).device

    @property
    def size(self) -> int:
        """How many weights are tuned, here and on other ranks."""
        return sum(int(mask.sum()) for mask in self.masks.values()) or sum(map(math.prod, self.shapes.values()))

    @property
    def held(self) -> int:
        """How many of them are in this process, with those of the same tensors that are not tuned."""
        return sum(tensor.numel() for tensor in self._tensors.values())

    def look(self) -> None:
        """Choose the sweeps by where the tensors are now: a model that was cast or moved needs other ones."""
        storage = [tensor.data_ptr() for tensor in self._tensors.values()]
        if self._chosen is None or storage != self._storage:
            parts: dict[str, Part] = {}
            for name, tensor in self._tensors.items():
                found = self._placed(name, tensor)
                names = (name,) if len(found) == 1 else tuple(f"{name} {index}" for index in range(len(found)))
                self._pieces[name] = names
                parts |= {one: Part(*piece, is_decayed(name)) for one, piece in zip(names, found, strict=True)}
            self._storage, self._chosen = storage, _sweeps(parts, self.family, self.masks, self._moments)

    def _placed(self, name: str, tensor: Tensor) -> list[tuple[Tensor, Place]]:
        """A tensor and where it lies in the noise, or the pieces that it is of a whole one."""
        cut = self.division.own(name)
        if cut is not None:
            return cut.pieces(tensor, self._ids[name])
        return [(tensor, Place(self._ids[name], tensor.numel() // len(tensor)))]

    def place(self, points: Sequence[Move]) -> Backend:
        """Bring the points to where a captured forward that was made for their `order` reads them.

        Another backend than the last time means that the weights have moved, and what was captured is void.
        """
        self._backend.order(points)
        return self._backend

    def perturbed(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, *, only: int | None = None
    ) -> Tensor:
        """The tensor (or its chosen rows, ascending) at each point, or at one, beside it: [points, *shape]."""
        with torch._C.DisableTorchFunction():  # no function mode sees the tensor as it stands
            backend = self._backend
            pieces = [backend.perturb(piece, points, rows, only) for piece in self._pieces[name]]
            return pieces[0] if len(pieces) == 1 else _together(self._tensors[name], pieces)

    def small(self, points: Sequence[Move]) -> dict[str, Tensor]:
        """On a GPU, the tensors that one launch perturbs together: [points, *shape]; on a CPU none."""
        found = self.perturbed_together(self._backend.small, points)
        for name, pieces in self._pieces.items():
            if len(pieces) > 1 and pieces[0] in found:
                found[name] = _together(self._tensors[name], [found.pop(piece) for piece in pieces])
        return found

    def groups(
        self, names: Sequence[str], points: int, together: Sequence[Sequence[str]] = ()
    ) -> dict[str, tuple[str, ...]]:
        """Small tensors that are used one after the other and can be perturbed together, by each name.

        The tensors of each set in `together` go with one another if they can, in this object's order, whatever they
        take.
        """
        backend = self._backend
        alone = {name for name in self._tensors if name in backend.alone or len(self._pieces[name]) > 1}
        groups = _groups(self._tensors, names, points, together, alone)
        for group in groups:
            backend.prepare(group)
        return {name: group for group in groups for name in group}

    def perturbed_together(self, names: Sequence[str], points: Sequence[Move]) -> dict[str, Tensor]:
        """The tensors of a group at each point, in one launch or shared out to the threads: [points, *shape]."""
        with torch._C.DisableTorchFunction():
            return self._backend.perturb_together(names, points)

    def looked_up(self, name: str, points: Sequence[Move], ids: Tensor, *, only: int | None = None) -> Tensor:
        """Row `ids[...]` of an embedding, the ids of each point one after the other: [*ids, columns]."""
        with torch._C.DisableTorchFunction():
            return self._backend.look_up(name, points, ids, only)

    def products(self, name: str, points: Sequence[Move], rows: Tensor | None, only: int | None) -> Products | None:
        """What the points add to a thin tensor, or to its chosen rows; None where no point has a term."""
        with torch._C.DisableTorchFunction():
            return self._backend.products(self._pieces[name][0], points, rows, only)

    def advance(self, moves: Sequence[Move], *, coefficients: Tensor | None = None) -> None:
        """Apply the moves in their order, in one pass over each tensor; `coefficients`: as `advance_along` has them."""
        self.look()
        self.writes += 1
        self._backend.advance(moves, coefficients)
        self._tell(moves if coefficients is None else None)

    def advance_along(self, seeds: Sequence[int], coefficients: Tensor, decay: float) -> None:
        """Apply one move of any number of terms, in the order of their seeds; a GPU is not waited for.

        `coefficients`, float64 [seeds], are where the tensors are.
        """
        if coefficients.shape != (len(seeds),):
            raise ValueError(f"{len(seeds)} seeds and coefficients of shape {tuple(coefficients.shape)}")
        self.advance([Move(tuple(Term(seed, 0.0) for seed in seeds), decay)], coefficients=coefficients)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors with others of the same names, shapes and dtypes; others are refused before any is."""
        own = self.tensors
        for name in sorted(own.keys() | tensors.keys()):
            found, expected = (_kind(held[name]) if name in held else "not there" for held in (tensors, own))
            if found != expected:
                raise DamagedError(f"tensor {name!r} of the weights to load is {found}; expected {expected}")
        self.writes += 1
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self._tell(None)

    def watch(self, moved: Callable[[Sequence[Move] | None], None]) -> None:
        """Call this after each write, with the moves; None: they were overwritten, or the moves are on a GPU."""
        self._watching.append(moved)

    def norm(self) -> float:
        """The length of all tuned tensors as one vector."""
        return math.sqrt(float(_squares(self.tensors, self.division).sum()))

    def first_unsound(self) -> str | None:
        """The first tensor that holds a value that is no finite number; None: all hold numbers only."""
        return next((name for name, part in self.tensors.items() if not bool(part.isfinite().all())), None)

    def digest(self) -> str:
        """BLAKE2b over every tuned tensor's name, dtype, shape and bytes; of the whole ones, whoever holds them."""
        return digest(self.wholes)

    def _tell(self, moves: Sequence[Move] | None) -> None:
        for moved in self._watching:
            moved(moves)

    @property
    def _backend(self) -> Backend:
        if self._chosen is None:
            self.look()
        assert self._chosen is not None
        return self._chosen


def sample_of(weights: Weights) -> dict[str, Tensor]:
    """A copy of the first few weights of each tensor."""
    return {name: tensor.view(-1)[:_SAMPLED].clone() for name, tensor in weights.tensors.items()}


def changed_share(weights: Weights, before: Mapping[str, Tensor]) -> float:
    """The share of weights that differ from a sample taken before, each tensor counted by its size."""
    after = sample_of(weights)
    changed = (
        float((after[name] != before[name]).float().mean()) * tensor.numel() for name, tensor in weights.tensors.items()
    )
    return sum(changed) / weights.held


def _squares(tensors: Mapping[str, Tensor], division: Division) -> Tensor:
    """The square of each whole tensor's length."""
    lengths = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors.values()])
    squares = lengths.double() ** 2
    if not division.cuts:
        return squares
    cut = torch.tensor([name in division.cuts for name in tensors], device=squares.device)
    return torch.where(cut, torch.stack(list(division.gathered(squares))).sum(dim=0), squares)


def _groups(
    tensors: Mapping[str, Tensor],
    names: Sequence[str],
    points: int,
    together: Sequence[Sequence[str]],
    alone: Collection[str],
) -> list[tuple[str, ...]]:
    """The names in their order, cut into groups that are perturbed at once; tensors that go `alone` are in none."""
    places = {name: index for index, name in enumerate(tensors)}
    sets = {name: tuple(sorted(names, key=places.__getitem__)) for names in together for name in names}
    found: list[list[str]] = [[]]
    held, dtype = 0, None  # of the last group
    for some in dict.fromkeys(sets.get(name, (name,)) for name in names):  # a model may use a tensor more than once
        of_some = [tensors[name] for name in some]
        needed = points * sum(tensor.nbytes for tensor in of_some)
        by_itself = any(name in alone for name in some)
        if by_itself or needed > _GROUPED // 2:
            found += [[] if by_itself else list(some), []]
            held = 0
            continue
        if found[-1] and (of_some[0].dtype != dtype or held + needed > _GROUPED):
            found.append([])
            held = 0
        found[-1] += some
        held, dtype = held + needed, of_some[0].dtype
    return [tuple(group) for group in found if len(group) > 1]


def _together(tensor: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Perturbed pieces of a tensor as the tensor at each point: [points, *shape]."""
    return torch.stack(list(pieces), 1).view(len(pieces[0]), *tensor.shape)


def _sweeps(
    parts: Mapping[str, Part], noise: Noise, masks: Mapping[str, Tensor], moments: dict[str, Moments]
) -> Backend:
    """The sweeps over parts of tensors, for moves of every kind."""

    def adapting(some: Mapping[str, Part]) -> Backend:
        return Adapting(lambda parts: backend_for(parts, noise), some, moments)

    return Masked(adapting, parts, masks) if masks else adapting(parts)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def thin_tensors(weights: Weights) -> set[str]:
    """The tensors whose directions are sums of a few products of a row's factor and a column's."""
    rank = weights.family.rank
    sizes = {name: min(len(one), one.numel() // len(one)) for name, one in weights.tensors.items()} if rank else {}
    return {name for name, size in sizes.items() if size >= rank * _THIN and name not in weights.division.cuts}


def is_decayed(name: str) -> bool:
    """Whether weight decay applies to the tensor: not to biases and norms."""
    lower = name.lower()
    return not any(part in lower for part in ("bias", "norm"))


def _noise_of(noise: Noise | str) -> Noise:
    """The family, or the one of this kind."""
    if isinstance(noise, str):
        one_of("noise", noise, FAMILIES)
        return FAMILIES[noise]
    if not hasattr(noise, "kind"):
        raise InputError(f"noise is {noise!r}; expected a family such as {', '.join(FAMILIES)}")
    check_noise(noise)
    return noise


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

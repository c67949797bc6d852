"""The processes of one run: how many there are, and the few numbers that they exchange.

Every rank runs the same loop on the same data and makes the same moves; what it shares is what it scored. This is the
only room that knows torch.distributed.
"""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from noback.errors import InputError, NobackError, shown
from noback.options import whole

DIVIDED = ("examples", "points", "both")
TIMEOUT = 600.0  # seconds that a rank is waited for; the first step compiles the noise
_PIECE = 2**24  # bytes of a file that are sent at once
_RANKS = "WORLD_SIZE"  # the environment variable that says how many ranks there are
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # how often torchrun has started the ranks of this machine again
_HERE = "here "  # where in torchrun's store a rank says that it waits for rank 0
_MEETINGS = "meetings"  # how often ranks have met there
_PAUSE = 0.01  # seconds between two looks at who has come
_COMES = "comes"  # where in the store a rank says how many exchanges it has come to
_GROUPS = 4  # of a batch's examples at least: what 1, 2 and 4 ranks score together is then the same
_LOST = "lost"  # where a rank says that it has lost others of its group, so that it is not one of those itself
_REPORTS = datetime.timedelta(seconds=2)  # for which a rank that is still there may take to say so


class LostRank(NobackError):
    """Another process of the run has gone, or hangs."""


class Group:
    """Neighbouring ranks that hold one model together; this process is one of them."""

    def __init__(self, first: int, size: int, rank: int, store: Any = None, handle: Any = None) -> None:
        """`first`: the group's first rank in the world; `rank`: this one's within the group."""
        self.first, self.size, self.rank, self._store, self._handle = first, size, rank, store, handle
        self.sent = 0

    def gathered(self, part: Tensor) -> list[Tensor]:
        """What every rank of the group has, in their order; the parts have one shape."""
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.size)]
        try:
            dist.all_gather(parts, part.contiguous(), group=self._handle)
        except RuntimeError as error:
            raise _lost(self._absent(), "its group") from error
        self.sent += part.numel() * part.element_size()
        return parts

    def summed(self, part: Tensor) -> Tensor:
        """The sum of what every rank of the group has: added in their order, so it is the same on all to the bit."""
        first, *others = self.gathered(part)
        total = first.float()
        for other in others:
            total = total + other  # a bfloat16 is rounded once, when all are added
        return total.to(part.dtype)

    def _absent(self) -> list[int]:
        """Which ranks of the group do not say that they are still there."""
        absent = []
        with suppress(RuntimeError):  # the store may be gone with the rank that keeps it
            self._store.set(f"{_LOST}{self.first + self.rank}", "")
        for rank in range(self.first, self.first + self.size):
            try:
                self._store.wait([f"{_LOST}{rank}"], _REPORTS)
            except RuntimeError:
                absent.append(rank)
        return absent if len(absent) < self.size else []


class World:
    """The ranks of a run; this process is one of them.

    `group`: the ranks that hold one model together with this one; none: each rank has a whole model. `again`: torchrun
    has started ranks of this run before.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        divide: str = "examples",
        store: Any = None,
        group: Group | None = None,
        *,
        again: bool = False,
    ) -> None:
        self.rank, self.size, self.divide, self._store, self.group = rank, size, divide, store, group
        self.again = again
        self.sent, self._exchanges = 0, 0

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run's folder and speaks to people."""
        return self.rank == 0

    @property
    def together(self) -> int:
        """How many ranks hold one model."""
        return 1 if self.group is None else self.group.size

    @property
    def models(self) -> int:
        """How many models there are, each on its own rank or group of ranks, which share a step's work."""
        return self.size // self.together

    @property
    def model(self) -> int:
        """Which of the models this rank holds, or holds a part of."""
        return self.rank // self.together

    @property
    def shares_examples(self) -> bool:
        """Whether the examples of a step are shared, or would be if there were more ranks."""
        return self.divide != "points" and (self.models > 1 or (self.size == 1 and _RANKS in os.environ))

    def sharers(self, points: int) -> int:
        """How many models share the examples of a step with so many points."""
        return self.models // groups_of(self.divide, self.models, points)

    def gathered(self, part: Tensor) -> list[Tensor]:
        """What every rank has, in the order of the ranks; the parts have one shape."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._exchanging():
            dist.all_gather(parts, part.contiguous())
        self.sent += part.numel() * part.element_size()
        return parts

    def gathered_bytes(self, data: bytes) -> list[bytes]:
        """The bytes that each rank has, in the order of the ranks."""
        if self.size == 1:
            return [data]
        lengths = [int(one) for one in self.gathered(torch.tensor([len(data)]))]
        filled = data + bytes(max(lengths) - len(data))
        parts = self.gathered(torch.frombuffer(bytearray(filled or b"\0"), dtype=torch.uint8))
        return [part.numpy().tobytes()[:length] for part, length in zip(parts, lengths, strict=True)]

    def from_rank(self, source: int, data: bytes) -> bytes:
        """The bytes that one rank has."""
        if self.size == 1:
            return data
        length = int(self._told(source, torch.tensor([len(data)])))
        filled = data if self.rank == source and data else bytes(max(length, 1))
        return self._told(source, torch.frombuffer(bytearray(filled), dtype=torch.uint8)).numpy().tobytes()[:length]

    def file_from(self, source: int, path: Path | None) -> Iterator[bytes]:
        """A file that one rank has, piece by piece; `path`: where it is, on that rank."""
        with open(path, "rb") if path else nullcontext() as file:
            while piece := self.from_rank(source, file.read(_PIECE) if file else b""):
                yield piece

    def answer_of_first(self, answer: bool) -> bool:
        """What rank 0 answers to a question that each is asked."""
        if self.size == 1:
            return answer
        return bool(self._told(0, torch.tensor([answer], dtype=torch.uint8)))

    def same(self, mine: str) -> bool:
        """Whether every rank has the same."""
        return len(set(self.gathered_bytes(mine.encode()))) == 1

    def agree(self, what: str, mine: str, part: str = "") -> None:
        """Refuse to go on where a rank has something else than rank 0; `part`: than the first that holds the same."""
        found = [told.decode().split("\n") for told in self.gathered_bytes(f"{mine}\n{part}".encode())]
        for rank, other in enumerate(found):
            for like, index in ((0, 0), (rank % self.together, -1)):
                if other[index] != found[like][index]:
                    raise InputError(
                        f"rank {rank} has another {what} than rank {like}; give every rank the same, "
                        "then go on from the run's folder"
                    )

    def _told(self, source: int, data: Tensor) -> Tensor:
        """What one rank has, of a shape that all know."""
        with self._exchanging():
            dist.broadcast(data, source)
        self.sent += data.numel() * data.element_size()
        return data

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Within, the ranks exchange something; one that does not come is named."""
        self._exchanges += 1
        self._store.set(f"{_COMES}{self.rank}", str(self._exchanges))
        try:
            yield
        except RuntimeError as error:
            raise _lost(self._behind(), str(self.size)) from error

    def _behind(self) -> list[int]:
        """Who has not come to the exchange at hand, as far as can be told."""
        late = []
        for rank in range(self.size):
            with suppress(RuntimeError, ValueError):
                if int(self._store.get(f"{_COMES}{rank}")) >= self._exchanges:
                    continue
            late.append(rank)
        return late if len(late) < self.size else []


def _lost(ranks: Sequence[int], of: str) -> LostRank:
    """`ranks`: those that are no longer there, as far as can be told."""
    who = f"rank {', '.join(map(str, ranks))}" if ranks else "a rank"
    return LostRank(
        f"{who} of {of} went away or did not answer within {TIMEOUT:g} s; "
        "nothing is lost: resume the run with as many ranks as there are"
    )


def share_of(count: int, rank: int, ranks: int, size: int = 1) -> slice:
    """Which of `count` things are a rank's: shares one after the other, that differ by one group at most.

    `size`: of the groups of neighbours that are not parted.
    """
    groups = -(-count // size)
    first, end = (min(groups * each // ranks * size, count) for each in (rank, rank + 1))
    return slice(first, end)


def group_size(examples: int, ranks: int) -> int:
    """How many examples ranks score together, so that each has as many groups; the same for 1, 2 and 4 ranks."""
    count = -(-_GROUPS // ranks) * ranks
    size = -(-examples // count)
    return size if -(-examples // size) >= count else max(examples // count, 1)


def unparted(examples: int, size: int | None, ranks: int) -> int:
    """The size of groups that are not parted, where examples are scored `size` at a time: 1 where ranks would idle."""
    return size if size is not None and -(-examples // size) >= ranks else 1


@contextmanager
def joined(divide: str = "examples", tensor_parallel: int = 1) -> Iterator[World]:
    """The world that the environment describes, as torchrun does; a process by itself where it describes none.

    `tensor_parallel`: how many ranks hold one model together.
    """
    _check_groups(_ranks(), tensor_parallel)
    if _ranks() == 1:
        yield World(divide=divide, again=_begun_again())
        return
    if torch.cuda.is_available():  # each rank of a machine has a GPU of its own, as long as there are enough
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    rank, size, store, again = _met()
    try:
        yield World(rank, size, divide, store, _group(rank, size, tensor_parallel, store), again=again)
    finally:
        dist.destroy_process_group()


def _check_groups(ranks: int, together: int) -> None:
    """Refuse groups that the ranks cannot form."""
    whole("tensor_parallel", together)
    if ranks == 1 and together > 1:
        raise InputError(
            f"tensor_parallel is {together} and there is one process; expected at least {together}: start them with "
            f"--workers {together} or torchrun"
        )
    if ranks % together:
        raise InputError(
            f"tensor_parallel is {together} and there are {ranks} ranks; expected a number of ranks that "
            f"{together} divides"
        )


def _group(rank: int, size: int, together: int, store: Any) -> Group | None:
    """The group of a rank; every rank takes part in making every group."""
    if together == 1:
        return None
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    waiting, found = datetime.timedelta(seconds=TIMEOUT), None
    for first in range(0, size, together):
        handle = dist.new_group(list(range(first, first + together)), waiting, backend)
        if first <= rank < first + together:
            found = Group(first, together, rank - first, store, handle)
    return found


def _met() -> tuple[int, int, Any, bool]:
    """Wait for the other ranks: (which this one is, how many there are, what they keep in common, whether again)."""
    waiting = datetime.timedelta(seconds=TIMEOUT)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=waiting)))
        name, again = _met_now(store, rank, size)
        store = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=waiting)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the ranks cannot meet: {str(error).splitlines()[0]}; start them with torchrun or --workers, or unset "
            "WORLD_SIZE where there is one process"
        ) from None
    return rank, size, store, again


def _met_now(store: Any, rank: int, size: int) -> tuple[str, bool]:
    """A name that only the ranks that are alive now have in common, and whether ranks have met here before.

    torchrun keeps one store for all ranks that it starts, and what dead ones wrote is still in it: their addresses,
    too. Rank 0 answers words that the others have just made, so an answer is never to a dead one. Counts of restarts
    would not do: each machine has its own, and ranks that begin again as a machine joins do not count.
    """
    mine = secrets.token_hex(8)
    if rank:
        store.set(f"{_HERE}{rank} of {size}", mine)
        said: str = store.get(mine).decode()
        name, _, again = said.partition(" ")
        store.set(f"{name}{rank}", "")
        return name, bool(again)
    again = " again" if store.add(_MEETINGS, 1) > 1 or os.environ.get(_RESTARTS, "0") != "0" else ""
    absent, until = set(range(1, size)), time.monotonic() + TIMEOUT
    while absent:
        for other in sorted(absent):
            if store.check([here := f"{_HERE}{other} of {size}"]):
                store.set(store.get(here).decode(), mine + again)
        absent -= {other for other in absent if store.check([f"{mine}{other}"])}
        if time.monotonic() > until:
            raise RuntimeError(f"rank {', '.join(map(str, sorted(absent)))} did not come within {TIMEOUT:g} s")
        time.sleep(_PAUSE if absent else 0.0)
    return mine, bool(again)


def _begun_again() -> bool:
    """Whether torchrun has started this only process before, or others in its place."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return os.environ.get(_RESTARTS, "0") != "0"
    store, rank, size = next(iter(rendezvous("env://", timeout=datetime.timedelta(seconds=TIMEOUT))))
    return _met_now(store, rank, size)[1]


def refuse_ranks(what: str, instead: str = "share its runs among workers one by one") -> None:
    """Refuse several processes where `what` is for one."""
    if _ranks() > 1:
        raise InputError(f"{what} for one process, and this is one of {_ranks()} of torchrun or --workers; {instead}")


def _ranks() -> int:
    """How many ranks the environment describes."""
    size = os.environ.get(_RANKS, "1")
    if not (size.isascii() and size.isdigit() and int(size)):
        raise InputError(f"WORLD_SIZE is {shown(size)}; expected a number of ranks, as torchrun sets it, or unset it")
    return int(size)


def check_divide(divide: str, ranks: int, points: int) -> None:
    """Refuse a number of ranks that cannot share the points of a step evenly."""
    if divide not in DIVIDED:
        raise InputError(f"divide is {divide!r}; expected one of {', '.join(DIVIDED)}")
    groups = groups_of(divide, ranks, points)
    if divide != "examples" and groups == 1:
        raise InputError(
            f"{ranks} ranks cannot share the {points} points of a step evenly; use a divisor of {points}, "
            "more directions, or --divide examples"
        )


def groups_of(divide: str, ranks: int, points: int) -> int:
    """How many groups of ranks share the points; the ranks of a group share the examples."""
    wanted = {"examples": 1, "points": ranks, "both": 2}[divide]
    return wanted if points >= wanted and points % wanted == 0 and ranks % wanted == 0 else 1

"""The processes of one run: how many there are, and the few numbers that they exchange.

Every rank runs the same loop on the same data and makes the same moves; what it shares is what it scored. This is the
only room that knows torch.distributed.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from noback.errors import InputError, NobackError, shown

DIVIDED = ("examples", "points", "both")
TIMEOUT = 600.0  # seconds that a rank is waited for; the first step compiles the noise
_COMES = "comes"  # where in the store a rank says how many exchanges it has come to


class LostRank(NobackError):
    """Another process of the run has gone, or hangs."""


class World:
    """The ranks of a run; this process is one of them."""

    def __init__(self, rank: int = 0, size: int = 1, divide: str = "examples", store: Any = None) -> None:
        self.rank, self.size, self.divide, self._store = rank, size, divide, store
        self.sent, self._exchanges = 0, 0

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run's folder and speaks to people."""
        return self.rank == 0

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

    def from_first(self, data: bytes) -> bytes:
        """The bytes that rank 0 has."""
        return self.gathered_bytes(data if self.is_first else b"")[0]

    def answer_of_first(self, answer: bool) -> bool:
        """What rank 0 answers to a question that each is asked."""
        if self.size == 1:
            return answer
        said = torch.tensor([answer], dtype=torch.uint8)
        with self._exchanging():
            dist.broadcast(said, 0)
        self.sent += 1
        return bool(said)

    def agree(self, what: str, mine: str) -> None:
        """Refuse to go on where a rank has something else than rank 0."""
        first, *others = self.gathered_bytes(mine.encode())
        for rank, other in enumerate(others, 1):
            if other != first:
                raise InputError(
                    f"rank {rank} has another {what} than rank 0; give every rank the same, "
                    "then go on from the run's folder"
                )

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Within, the ranks exchange something; one that does not come is named."""
        self._exchanges += 1
        self._store.set(f"{_COMES}{self.rank}", str(self._exchanges))
        try:
            yield
        except RuntimeError as error:
            raise LostRank(
                f"{self._behind()} of {self.size} went away or did not answer within {TIMEOUT:g} s; "
                "nothing is lost: resume the run with as many ranks as there are"
            ) from error

    def _behind(self) -> str:
        """Who has not come to the exchange at hand, as far as can be told."""
        late = []
        for rank in range(self.size):
            with suppress(RuntimeError, ValueError):
                if int(self._store.get(f"{_COMES}{rank}")) >= self._exchanges:
                    continue
            late.append(str(rank))
        return f"rank {', '.join(late)}" if late and len(late) < self.size else "a rank"


def share_of(count: int, rank: int, ranks: int) -> slice:
    """Which of `count` things are a rank's: shares one after the other, of sizes that differ by one at most."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


@contextmanager
def joined(divide: str = "examples") -> Iterator[World]:
    """The world that the environment describes, as torchrun does; a process by itself where it describes none."""
    if _ranks() == 1:
        yield World()
        return
    if torch.cuda.is_available():  # each rank of a machine has a GPU of its own, as long as there are enough
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    rank, size, store = _met()
    try:
        yield World(rank, size, divide, store)
    finally:
        dist.destroy_process_group()


def _met() -> tuple[int, int, Any]:
    """Wait for the other ranks: (which this one is, how many there are, what they keep in common)."""
    waiting = datetime.timedelta(seconds=TIMEOUT)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=waiting)))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=waiting)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the ranks cannot meet: {str(error).splitlines()[0]}; start them with torchrun or --workers, or unset "
            "WORLD_SIZE where there is one process"
        ) from None
    return rank, size, store


def refuse_ranks(what: str, instead: str = "share its runs among workers one by one") -> None:
    """Refuse several processes where `what` is for one."""
    if _ranks() > 1:
        raise InputError(f"{what} for one process, and this is one of {_ranks()} of torchrun or --workers; {instead}")


def _ranks() -> int:
    """How many ranks the environment describes."""
    size = os.environ.get("WORLD_SIZE", "1")
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

"""One or several servers that share the work: who is slow or away leaves it to the others.

A part of the work is one request, whoever answers it, so what a run measures does not depend on who did.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from noback.engines.servers.copies import Base
from noback.engines.servers.server import About, Ask, Away, Copy, NotLoaded, Reply, Server
from noback.errors import InputError

_LOOKS = (0.2, 0.5, 1.0, 2.0)  # seconds between looks at a server that is away; the last goes on
_LATE = 3.0  # times what a part took so far: then another server that is free is asked too
_MOST_REPUBLISHED = 3  # times in a row that a server may lose what was published before that is an error


class Part(NamedTuple):
    """Asks that go out together; their adapters are numbers of copies."""

    asks: Sequence[Ask]
    copies: Sequence[int | None]  # the copy of each ask


class Numbered(NamedTuple):
    """A copy and its number, which no other copy of this process has."""

    number: int
    copy: Copy


class Published(NamedTuple):
    """What parts are asked on: copies, and the weights beside which they were made."""

    copies: Sequence[Numbered]
    base: Base | None


class Fleet:
    """Servers with the same model, as one."""

    def __init__(
        self,
        servers: Sequence[Server],
        examine: Callable[[Server], Awaitable[About]],
        name: Callable[[], str],
        *,
        wait: float,
        say: Callable[[str], None],
    ) -> None:
        """`examine` refuses a server that cannot do the work. `wait`: seconds that all may be away at once."""
        # What a server has in its cache depends on which parts it had: rounding would, too, were it used.
        self._seats = [_Seat(server, name, apart=len(servers) > 1) for server in servers]
        self._examine, self._wait, self._say = examine, wait, say
        self.abouts: list[About] = []

    async def begin(self, is_left_over: Callable[[str], bool]) -> list[About]:
        """Examine every server, and retire what an earlier process left; one that is away now is refused."""
        try:
            for seat in self._seats:
                await seat.server.about()  # one that hangs, or is another program, is told before it is asked to unload
                for name in [name for name in await seat.server.loaded() if is_left_over(name)]:
                    await seat.server.retire(name)
            self.abouts = [await self._examine(seat.server) for seat in self._seats]
        except Away as error:
            raise InputError(str(error)) from None
        first = self.abouts[0]
        for seat, about in zip(self._seats, self.abouts, strict=True):
            if (about.version, about.dtype) != (first.version, first.dtype):
                raise InputError(
                    f"server {seat.server.url} is {about.kind} {about.version} in {about.dtype}, and "
                    f"{self._seats[0].server.url} {first.version} in {first.dtype}; expected the same of all"
                )
        return self.abouts

    async def score(
        self, parts: Sequence[Part], copies: Sequence[Numbered], base: Base | None = None
    ) -> list[list[Reply]]:
        """The replies to each part; `base`: weights beside which the copies were made, none: the model's own."""
        board = _Board(len(parts))
        on = Published(copies, base)
        work = [asyncio.create_task(self._work(seat, board, parts, on)) for seat in self._seats]
        try:
            await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
        return [board.done[index] for index in range(len(parts))]

    async def retire(self, numbers: Sequence[int]) -> None:
        """Unload copies wherever they are; a server that is away holds none when it is back."""
        await asyncio.gather(*(seat.retire(numbers) for seat in self._seats))

    @property
    def has_sent(self) -> bool:
        """Whether weights were sent, which the servers are to have no more in the end."""
        return any(seat.was_sent for seat in self._seats)

    async def end(self) -> None:
        """Unload everything, have the servers load their own weights again, and close."""
        ends = await asyncio.gather(*(seat.end() for seat in self._seats), return_exceptions=True)
        for failed in (one for one in ends if isinstance(one, BaseException)):  # once all have come to their end
            raise failed

    async def _work(self, seat: _Seat, board: _Board, parts: Sequence[Part], on: Published) -> None:
        """What one server does of the parts, until all are done."""
        if seat.away is not None:
            await self._come_back(seat, board)
        while not board.is_done:
            index = board.take(seat)
            if index is None:
                await board.change(board.next_look())
                continue
            asked = asyncio.create_task(seat.answers(parts[index], on))
            ended = asyncio.create_task(board.finished.wait())
            try:
                await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    return  # another server was first
                replies = await asked
            except Away as error:
                board.put_back(index, seat)
                seat.away, seat.away_since = error, time.monotonic()
                self._say(f"{error}; waiting for it")
                await self._come_back(seat, board)
            else:
                board.finish(index, seat, replies)
            finally:
                asked.cancel()
                ended.cancel()

    async def _come_back(self, seat: _Seat, board: _Board) -> None:
        """Wait until a server is back and can do the work; others may do all of it meanwhile."""
        looks = deque(_LOOKS)
        while not board.is_done:
            try:
                about = await self._examine(seat.server)
            except Away:
                self._check_patience()
                await board.change(looks.popleft() if len(looks) > 1 else looks[0])
                continue
            before = self.abouts[self._seats.index(seat)]
            if about.recorded() != before.recorded():
                raise InputError(
                    f"server {seat.server.url} came back with {about.recorded()}; the run began with "
                    f"{before.recorded()}: start it as it was, then noback resume"
                ) from None
            seat.away = None
            self._say(f"server {seat.server.url} is back")
            return

    def _check_patience(self) -> None:
        """Stop where every server has been away for too long."""
        away = [(seat.away_since, seat.away) for seat in self._seats if seat.away is not None]
        since, error = max(away, key=lambda one: one[0])
        if len(away) == len(self._seats) and time.monotonic() - since > self._wait:
            raise Away(
                f"{error}; it was waited for {self._wait:g} s (--wait); nothing is lost: start it again, then "
                "noback resume"
            ) from None


class _Seat:
    """A server and what is published on it."""

    def __init__(self, server: Server, name: Callable[[], str], *, apart: bool) -> None:
        """`apart`: a request's answers do not depend on the requests before it."""
        self.server, self._name, self._apart = server, name, apart
        self._names: dict[int, str] = {}  # of copies that are there
        self._base: int | None = None  # the number of the base that is there
        self.was_sent = False  # whether any ever was
        self._doubtful: list[str] = []  # names that were sent, and may be there or not
        self.away: Away | None = None  # why it is not at work
        self.away_since = 0.0

    async def answers(self, part: Part, on: Published) -> list[Reply]:
        """The replies to a part, once its copies are published here, and their base."""
        for attempt in range(_MOST_REPUBLISHED):
            try:
                await self._rebase(on.base)
                await self._publish(on.copies)
                asks = [
                    ask._replace(adapter=None if number is None else self._names[number])
                    for ask, number in zip(part.asks, part.copies, strict=True)
                ]
                return await self.server.score(asks, apart=self._apart)
            except Away:
                self._doubt()
                raise
            except NotLoaded:
                self._doubt()
                if attempt == _MOST_REPUBLISHED - 1:
                    raise
        raise AssertionError("not reached")

    async def retire(self, numbers: Sequence[int]) -> None:
        """Unload copies that are published here."""
        self._doubtful += [self._names.pop(number) for number in numbers if number in self._names]
        if self.away is None:
            with suppress(Away):
                await self._clear()

    async def end(self) -> None:
        """Unload everything and close."""
        try:
            try:
                await self.retire(list(self._names))
            finally:
                if self.was_sent:
                    await self.server.restore()
        finally:
            await self.server.close()

    async def _rebase(self, base: Base | None) -> None:
        if base is None or base.number == self._base:
            return
        self._base, self.was_sent = None, True
        name = self._name()
        await self.server.rebase(base.tensors, name)
        self._base = base.number

    async def _publish(self, copies: Sequence[Numbered]) -> None:
        missing = {one.number: self._name() for one in copies if one.number not in self._names}
        self._doubtful += missing.values()
        sent = [self.server.publish(missing[one.number], one.copy) for one in copies if one.number in missing]
        await asyncio.gather(*sent)
        self._doubtful = [name for name in self._doubtful if name not in missing.values()]
        self._names |= missing

    def _doubt(self) -> None:
        self._doubtful += self._names.values()
        self._names.clear()
        self._base = None

    async def _clear(self) -> None:
        """Unload what nobody uses any more."""
        names, self._doubtful = self._doubtful, []
        done = await asyncio.gather(*map(self.server.retire, names), return_exceptions=True)
        self._doubtful += [name for name, one in zip(names, done, strict=True) if one is not None]
        for one in done:
            if isinstance(one, BaseException):
                raise one


class _Board:
    """Which parts wait, which are in the air, and which are done."""

    def __init__(self, count: int) -> None:
        self._waiting = deque(range(count))
        self._in_the_air: dict[int, dict[_Seat, float]] = {}
        self._count, self._longest = count, 0.0
        self.done: dict[int, list[Reply]] = {}
        self.finished, self._changed = asyncio.Event(), asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether every part has its replies."""
        return len(self.done) == self._count

    def take(self, seat: _Seat) -> int | None:
        """A part for a server: one that waits, or one that another has had for too long."""
        index = self._waiting.popleft() if self._waiting else self._late(seat)
        if index is not None:
            self._in_the_air.setdefault(index, {})[seat] = time.monotonic()
        return index

    def put_back(self, index: int, seat: _Seat) -> None:
        """A server that is away leaves its part."""
        holders = self._in_the_air.get(index, {})
        holders.pop(seat, None)
        if not holders and index not in self.done:
            self._waiting.appendleft(index)
        self._tell()

    def finish(self, index: int, seat: _Seat, replies: list[Reply]) -> None:
        """A part has its replies; those of the first count."""
        began = self._in_the_air.pop(index, {}).get(seat)
        if began is not None:
            self._longest = max(self._longest, time.monotonic() - began)
        self.done.setdefault(index, replies)
        if self.is_done:
            self.finished.set()
        self._tell()

    def next_look(self) -> float:
        """Seconds after which a part may be late."""
        return max(self._longest, 0.05)

    async def change(self, most: float) -> None:
        """Wait until something changes, or for so many seconds."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), most)
        except TimeoutError:
            return

    def _late(self, seat: _Seat) -> int | None:
        now = time.monotonic()
        for index, holders in self._in_the_air.items():
            alone = len(holders) == 1 and seat not in holders
            if alone and self._longest and now - min(holders.values()) > _LATE * self._longest:
                return index
        return None

    def _tell(self) -> None:
        self._changed.set()

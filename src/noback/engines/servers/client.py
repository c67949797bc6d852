"""HTTP to one server: pooled connections, a bound on requests in the air, and failures as sentences."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx

from noback.engines.servers.server import Away, Refused
from noback.errors import shown

T = TypeVar("T")
PAUSES = (0.1, 0.4, 1.6)  # seconds before a request that may be sent again is
IN_THE_AIR = 8  # requests to a server at once; others wait here, not there
_BUSY = (429, 503)  # the server says: later
_GONE = (502, 504)  # what stands before it says: it is not there
_REACHED_WITHIN = 10.0  # seconds for a connection


class Background:
    """An event loop in a thread of its own: requests are under way while the caller does something else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="noback requests", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin some work; its result is waited for by `result()`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work and wait for it; a Ctrl-C ends the work too."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def is_current(self) -> bool:
        """Whether it is this thread that asks."""
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()


class Client:
    """Requests to one address, within one event loop."""

    def __init__(
        self, url: str, *, key: str | None = None, timeout: float = 120.0, pauses: Sequence[float] = PAUSES
    ) -> None:
        """`key`: sent as a bearer token. `timeout`: seconds without a byte after which a server is taken to hang."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout, self._pauses = timeout, tuple(pauses)
        self._pool: httpx.AsyncClient | None = None
        self._room: asyncio.Semaphore | None = None

    async def get(self, path: str, *, timeout: float | None = None) -> Any:
        """What stands at a path, as JSON; `timeout`: seconds, where what is asked comes sooner than scores may."""
        return await self._asked("GET", path, None, again=True, timeout=timeout)

    async def post(self, path: str, body: Any, *, again: bool) -> Any:
        """The reply to a body, as JSON; `again`: whether it may be sent twice, as what changes nothing may."""
        return await self._asked("POST", path, body, again=again, timeout=None)

    async def text(self, path: str) -> str:
        """What stands at a path, as it is."""
        return (await self._replied("GET", path, None, again=True, timeout=None)).text

    async def tell(self, path: str, body: Any, *, again: bool) -> None:
        """Send a body whose reply says no more than yes."""
        await self._replied("POST", path, body, again=again, timeout=None)

    async def close(self) -> None:
        """Give back the connections."""
        if self._pool is not None:
            await self._pool.aclose()
        self._pool = None

    async def _asked(self, method: str, path: str, body: Any, *, again: bool, timeout: float | None) -> Any:
        reply = await self._replied(method, path, body, again=again, timeout=timeout)
        try:
            return reply.json() if reply.content else None
        except ValueError:
            raise Refused(f"server {self.url} answers {path} with {shown(reply.text)}; expected JSON") from None

    async def _replied(
        self, method: str, path: str, body: Any, *, again: bool, timeout: float | None
    ) -> httpx.Response:
        """A reply that says yes."""
        pauses, within = list(self._pauses), min(timeout or self._timeout, self._timeout)
        while True:
            pause = pauses.pop(0) if pauses else None
            try:
                reply = await self._sent(method, path, body, within)
            except httpx.TimeoutException:
                raise Away(
                    f"server {self.url} has not answered {path} within {within:g} s; look at its "
                    "log, or give it longer (--timeout)"
                ) from None
            except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
                if again and pause is not None:
                    await asyncio.sleep(pause)
                    continue
                raise Away(
                    f"server {self.url} cannot be reached ({_why(error)}); start it, or name it with --url"
                ) from None
            if reply.status_code in _BUSY and pause is not None:  # it did not begin, so any request may come again
                await asyncio.sleep(_told(reply, pause))
                continue
            self._check(path, reply)
            return reply

    async def _sent(self, method: str, path: str, body: Any, timeout: float) -> httpx.Response:
        if self._pool is None or self._room is None:
            bounds = httpx.Limits(max_connections=IN_THE_AIR, max_keepalive_connections=IN_THE_AIR)
            waiting = httpx.Timeout(self._timeout, connect=_REACHED_WITHIN)
            self._pool = httpx.AsyncClient(headers=self._headers, limits=bounds, timeout=waiting, trust_env=False)
            self._room = asyncio.Semaphore(IN_THE_AIR)
        async with self._room:
            waiting = httpx.Timeout(timeout, connect=min(timeout, _REACHED_WITHIN))
            return await self._pool.request(method, f"{self.url}{path}", json=body, timeout=waiting)

    def _check(self, path: str, reply: httpx.Response) -> None:
        """Refuse a reply that says no."""
        status = reply.status_code
        if status in (401, 403):
            raise Refused(
                f"server {self.url} asks for a key ({status}); put it into the environment variable that "
                "--key-variable names, NOBACK_SERVER_KEY where none is named"
            )
        if status in _BUSY or status in _GONE:
            raise Away(f"server {self.url} answers {path} with {status} {reply.reason_phrase}")
        if status >= 400:
            raise Refused(f"server {self.url} refuses {path} ({status}): {said(reply.text)}")


def said(text: str) -> str:
    """What a server says of an error, in a line."""
    return " ".join(text.split())[:300]


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _told(reply: httpx.Response, pause: float) -> float:
    """How long a busy server asks to be left alone, where it says so."""
    text = reply.headers.get("retry-after", "")
    return min(float(text), 60.0) if text.isdigit() else pause

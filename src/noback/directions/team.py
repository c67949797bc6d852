"""Work shared out to threads: to torch's own where they can be had.

Torch's threads spin for milliseconds after a product, and threads beside them would have to wait for the cores.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

Gather = Callable[[Callable[[], None], int], None]  # runs a function that raises nothing in each of so many threads

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PROCESS = os.getpid()  # threads do not survive a fork, and OpenMP would wait for its own in the child


def share_out(threads: int, kernel: Callable[..., None], chunks: Sequence[tuple[Any, ...]]) -> None:
    """Run the kernel on every chunk; a thread that is held up takes fewer of them."""
    left, failures = iter(chunks), list[BaseException]()

    def work() -> None:
        try:
            for chunk in left:
                kernel(*chunk)
        except BaseException as error:  # noqa: BLE001 (raised below: no thread writes weights after an interrupt)
            failures.append(error)

    if threads == 1:
        work()
    else:
        gathering()(work, threads)
    if failures:
        raise failures[0]


@cache
def gathering() -> Gather:
    """How threads are had: the OpenMP team that torch has loaded for all, or threads of our own."""
    known = sys.platform == "linux" and os.getpid() == _PROCESS
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if known else None
    if found is None:
        return own_threads
    found.restype, found.argtypes = None, (_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)

    def team(work: Callable[[], None], threads: int) -> None:
        found(_BODY(lambda _: work()), None, threads, 0)

    return team


def own_threads(work: Callable[[], None], threads: int) -> None:
    """The calling thread, and others of our own."""
    others = [_pool(threads).submit(work) for _ in range(1, threads)]
    work()
    for other in others:
        other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="noback-noise")


def _after_fork() -> None:
    gathering.cache_clear()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_after_fork)

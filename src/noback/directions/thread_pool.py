"""Chunks of work that several threads take in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any


def share_out(threads: int, kernel: Callable[..., None], chunks: Sequence[tuple[Any, ...]]) -> None:
    """Run the kernel on every chunk, in this thread and others; a thread that is held up takes fewer of them."""
    left, failures = iter(chunks), list[BaseException]()

    def work() -> None:
        try:
            for chunk in left:
                kernel(*chunk)
        except BaseException as error:  # noqa: BLE001 (raised below: no thread writes weights after an interrupt)
            failures.append(error)

    others = [_pool(threads).submit(work) for _ in range(1, threads)]
    work()
    wait(others)
    if failures:
        raise failures[0]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="noback-noise")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork

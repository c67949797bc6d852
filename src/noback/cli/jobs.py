"""--jobs: parts of a comparison of methods in processes of their own, each with its own runs; then one joins them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from noback.errors import Interrupted, NobackError
from noback.watching import Watcher

MOST = 256
_LOOK = 0.5  # seconds between two looks at the parts


def run_jobs(
    command: Sequence[str], count: int, folder: Path, planned: int, *, watcher: Watcher, stop: Callable[[], bool]
) -> None:
    """Run `noback COMMAND --part I/N` for every part at once until all have ended; what each says is in its log."""
    logs, ended = folder / "jobs", folder / "grid" / "cells"
    logs.mkdir(exist_ok=True)
    with _started(command, count, logs) as parts:
        while any(part.poll() is None for part in parts):
            if stop():
                raise Interrupted(f"stopped; nothing is lost: the same command with --out {folder} goes on")
            watcher.progress("runs that have ended", sum(1 for _ in ended.glob("*.json")), planned)
            time.sleep(_LOOK)
        for number, part in enumerate(parts, start=1):
            if part.returncode:
                raise NobackError(f"part {number} of {count} {_end(part.returncode, logs / f'{number}.log')}")


def _end(code: int, log: Path) -> str:
    """How a part ended that has failed, by the last line that it said."""
    last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return f"ended with exit code {code}: {last} (the rest is in {str(log)!r}); the same command goes on"


@contextmanager
def _started(command: Sequence[str], count: int, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The parts while they run; where the block ends before them, they are asked to stop and waited for."""
    threads = str(max((os.cpu_count() or 1) // count, 1))
    parts: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, count + 1):
            with (logs / f"{number}.log").open("wb") as log:
                words = [sys.executable, "-m", "noback", *command, "--part", f"{number}/{count}"]
                parts.append(
                    subprocess.Popen(  # noqa: S603 - this very program
                        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                        env={"OMP_NUM_THREADS": threads, **os.environ},
                    )
                )  # fmt: skip
        yield parts
    finally:
        for part in parts:
            if part.poll() is None:
                part.send_signal(signal.SIGINT)
        for part in parts:
            part.wait()

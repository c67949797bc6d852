"""Failures at a run's own calls to the system: refused by the disk, or killed there, and then gone on with.

Calls count that concern a file in the run's folder: opening, writing (a part is written first), syncing, renaming,
cutting, deleting, making a folder, and the writing of a snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import noback.journal
import noback.snapshot
from noback import RunConfig, Sgd, TwoSided, resume, train
from noback.errors import NobackError
from noback.folder import RunFolder
from noback.journal import read_journal

_BY_PATH = ("open", "replace", "rename", "unlink", "mkdir", "rmdir")
_BY_NUMBER = ("fsync", "fdatasync", "ftruncate")


class Calls:
    """Counts the calls within a folder, and does something at one of them."""

    def __init__(self, folder: Path, at: int | None, act: Callable[[], None]) -> None:
        self.folder, self.at, self.act, self.count = str(folder), at, act, 0
        self.numbers: set[int] = set()

    def concern(self, path: object) -> bool:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return Path(text).name.startswith(f".{Path(self.folder).name}.") or text.startswith(self.folder)

    def hit(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()


@contextlib.contextmanager
def injected(calls: Calls) -> Iterator[Calls]:
    """Within, the calls are counted and may fail."""
    kept = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_NUMBER, "fdopen")}
    save, sync = noback.snapshot.save_file, noback.journal._sync
    for name in _BY_PATH:
        setattr(os, name, _by_path(calls, kept[name], opens=name == "open"))
    for name in _BY_NUMBER:
        setattr(os, name, _by_number(calls, kept[name]))
    os.fdopen = lambda number, *rest, **named: _wrapped(calls, number, kept["fdopen"](number, *rest, **named))
    noback.journal._sync = os.fdatasync
    noback.snapshot.save_file = lambda tensors, path, **named: _saved(calls, save, tensors, path, **named)
    try:
        yield calls
    finally:
        for name, function in kept.items():
            setattr(os, name, function)
        noback.snapshot.save_file, noback.journal._sync = save, sync


def _by_path(calls: Calls, function, *, opens: bool):
    def call(path, *rest, **named):
        ours = calls.concern(path)
        if ours:
            calls.hit()
        found = function(path, *rest, **named)
        if ours:
            calls.hit()  # done, and the process may die before it knows
            if opens:
                calls.numbers.add(found)
        return found

    return call


def _by_number(calls: Calls, function):
    def call(number, *rest):
        if number in calls.numbers:
            calls.hit()
        return function(number, *rest)

    return call


def _wrapped(calls: Calls, number: int, file):
    return _File(calls, file) if number in calls.numbers else file


class _File:
    """A file whose writing may stop after a part."""

    def __init__(self, calls: Calls, file) -> None:
        self._calls, self._file = calls, file

    def write(self, data: bytes) -> int:
        if self._calls.count + 1 == self._calls.at:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
        self._calls.hit()
        return self._file.write(data)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *what):
        return self._file.__exit__(*what)

    def __getattr__(self, name: str):
        return getattr(self._file, name)


def _saved(calls: Calls, save, tensors, path, **named) -> None:
    calls.hit()
    save(tensors, path, **named)
    if calls.count + 1 == calls.at:
        data = Path(path).read_bytes()
        Path(path).write_bytes(data[: len(data) // 2])
    calls.hit()


def refuse() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def small_config(model: Path, data: Path, steps: int, eval_every: int) -> RunConfig:
    method = {"rule": Sgd(lr=1e-2), "estimator": TwoSided(eps=1e-2)}
    return RunConfig(
        model=str(model), data=str(data), steps=steps, batch=2, eval_every=eval_every, test_limit=8, **method
    )


def go(config: RunConfig, out: Path, at: int | None, act: Callable[[], None]) -> int:
    """Begin or go on with a run under injection; how many calls there were."""
    calls = Calls(out, at, act)
    with injected(calls):
        resume(out) if RunFolder(out).config.is_file() else train(config, out)
    return calls.count


def facts(out: Path) -> tuple[bytes, str, str, tuple[str, ...], str]:
    """What must be the same however a run was harmed: its journal, the verdict and why."""
    result = [line for line in RunFolder(out).read_metrics() if line["kind"] == "result"][-1]
    said = (result["weights"], result["final_weights"], tuple(result["evidence"]), result["verdict"])
    return ((out / "journal").read_bytes(), *said)


def fuzz_failures(model: Path, data: Path, folder: Path, places: list[int] | None = None) -> dict[str, int]:
    """Refuse each call once (or those named), go on, and compare with a run that was never disturbed."""
    config = small_config(model, data, 4, 2)
    total = go(config, folder / "undisturbed", None, refuse)
    expected, outcomes = facts(folder / "undisturbed"), Counter[str]()
    for at in places or range(1, total + 1):
        if at > total:
            continue
        out = folder / "failed"
        shutil.rmtree(out, ignore_errors=True)
        try:
            go(config, out, at, refuse)
            outcomes["went on"] += 1  # a line for people, or a leftover, that could not be written or deleted
        except (NobackError, OSError):
            outcomes["stopped with a sentence"] += 1
        go(config, out, None, refuse)
        assert facts(out) == expected, f"call {at} of {total}: the run ended elsewhere"
        assert not [path.name for path in out.iterdir() if path.name.startswith(".")], f"call {at}: leftovers"
    return dict(outcomes)


def fuzz_kills(model: Path, data: Path, folder: Path, seed: int, kills: int) -> dict[str, int]:
    """Kill runs for real at calls drawn by chance, again and again, until they end; compare with one never killed."""
    rng, outcomes = random.Random(seed), Counter[str]()
    config = small_config(model, data, 24, 3)
    total = go(config, folder / "undisturbed", None, die)
    expected = facts(folder / "undisturbed")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["noback.training", "tests.hostile.injecting"])
    while outcomes["killed"] < kills:
        out = folder / f"run-{outcomes['ended on the same bits']}"
        for _ in range(12):
            child = processes.Process(target=go, args=(config, out, rng.randrange(1, total // 6), die))
            child.start()
            child.join()
            if child.exitcode == 0:
                break
            assert child.exitcode == -signal.SIGKILL, child.exitcode
            outcomes["killed"] += 1
            read_journal(out / "journal") if (out / "journal").exists() else None
        go(config, out, None, die)
        assert facts(out) == expected, f"{out.name}: ended elsewhere"
        outcomes["ended on the same bits"] += 1
    return dict(outcomes)

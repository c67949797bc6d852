"""A run's folder: its files by name, its lock, and the metrics that people and reports read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noback.errors import InputError, InUseError
from noback.files import (
    clear_leftovers,
    is_regular,
    open_regular,
    read_regular,
    refuse_link,
    whole_folder,
    write_new,
    write_whole,
)
from noback.json_text import json_text
from noback.metrics import metrics_in

_LONG_LINE = 1_000_000  # bytes of a line that is read by itself
_LOGS = ("tensorboard", "wandb")  # folders that trackers write into


class RunFolder:
    """The only link between training and what watches it.

    Its files are regular ones, which lie in it: a folder may come from someone else (`files.py`).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "run.toml"
        self.journal = self.path / "journal"
        self.metrics = self.path / "metrics.jsonl"
        self.snapshots = self.path / "snapshots"
        self.trained_rows = self.path / "trained-rows"
        self.data = self.path / "data"  # rows that were given in memory
        self._has_rows = False  # whether these were put there and nothing else is

    def check_new(self) -> None:
        """Refuse a folder that exists, unless its rows were put there just now."""
        if self.path.exists() and not self._has_rows:
            raise InputError(
                f"run folder {str(self.path)!r} exists; choose another with --out, "
                f"or go on with it: noback resume {self.path}"
            )

    def create(self, config: str) -> None:
        """Make the folder with its configuration, whole or not at all; one that exists is refused."""
        self.check_new()
        if self._has_rows:
            write_whole(self.config, config)
            return
        self._make({self.config.name: config.encode()}, self.path)

    def keep_data(self, files: Mapping[str, bytes]) -> None:
        """Make the folder with nothing but a run's rows."""
        self.check_new()
        self._make(files, self.data)
        self._has_rows = True

    def _make(self, files: Mapping[str, bytes], folder: Path) -> None:
        try:
            with whole_folder(folder) as unborn:
                for name, content in files.items():
                    write_new(unborn / name, content)
        except OSError as error:
            raise InputError(f"run folder {str(self.path)!r} cannot be made: {error.strerror}") from None

    def check(self) -> None:
        """Refuse a folder that is no run, or in which a link stands for a file."""
        if not is_regular(self.config):
            what = "is no run folder (it has no run.toml)" if self.path.is_dir() else "does not exist"
            inside = sorted(path.parent.name for path in self.path.glob("*/run.toml"))
            if inside:
                raise InputError(
                    f"{str(self.path)!r} is no run folder and holds {len(inside)} of them; name one, such as "
                    f"{str(self.path / inside[0])!r} (`noback runs {self.path}` lists them)"
                )
            raise InputError(f"{str(self.path)!r} {what}; expected a folder that `noback train` made")
        for path in (self.journal, self.metrics, self.trained_rows, self._lock):
            is_regular(path)
        for name in (self.snapshots.name, self.data.name, *_LOGS):
            refuse_link(self.path / name)

    def clear(self) -> None:
        """Remove what processes that died left half-written."""
        clear_leftovers(self.path)
        self.journal.with_name(self.journal.name + ".new").unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.path / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process is refused. The system lets go of the lock when the holder dies."""
        with os.fdopen(open_regular(self._lock, os.O_RDWR | os.O_CREAT), "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(
                    f"run folder {str(self.path)!r} is in use by another process; wait for it or stop it"
                ) from None
            self.clear()
            yield

    def is_locked(self) -> bool:
        """Whether another process holds the folder; asking takes a shared lock and lets go at once."""
        try:
            with os.fdopen(open_regular(self._lock), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def add_metrics(self, **values: Any) -> None:
        """Append one line of metrics. Nothing but people depends on it, so a full disk here stops no run."""
        try:
            with os.fdopen(open_regular(self.metrics, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - 1, 0))
                torn = file.read(1) not in (b"", b"\n")  # a killed process left half a line
                file.write(b"\n" * torn + json_text(values).encode() + b"\n")
        except OSError:
            return

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics in the form that noback writes."""
        return metrics_in(read_regular(self.metrics).decode(errors="replace")) if is_regular(self.metrics) else []

    def first_metrics(self) -> dict[str, Any] | None:
        """The first line of metrics, whatever their size; None where there is none."""
        if not is_regular(self.metrics):
            return None
        with os.fdopen(open_regular(self.metrics), "rb") as file:
            return next(iter(metrics_in(file.readline(_LONG_LINE).decode(errors="replace"))), None)


def next_folder(parent: Path, name: str) -> Path:
    """The first of parent/name-001, parent/name-002, ... that does not exist."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"

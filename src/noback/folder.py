"""A run's folder: its files by name, its lock, and the metrics that people and reports read."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noback.errors import InputError, InUseError, NobackError
from noback.json_text import json_text


class RunFolder:
    """The only link between training and what watches it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "run.toml"
        self.journal = self.path / "journal"
        self.metrics = self.path / "metrics.jsonl"
        self.snapshots = self.path / "snapshots"

    def create(self, config: str) -> None:
        """Make the folder with its configuration, whole or not at all; one that exists is refused."""
        if self.path.exists():
            raise InputError(
                f"run folder {str(self.path)!r} exists; choose another with --out, "
                f"or go on with it: noback resume {self.path}"
            )
        unborn = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            unborn.mkdir(parents=True)
            with open(unborn / self.config.name, "w", encoding="utf-8") as file:
                file.write(config)
                file.flush()
                os.fsync(file.fileno())
            unborn.rename(self.path)
        except OSError as error:
            shutil.rmtree(unborn, ignore_errors=True)
            raise InputError(f"run folder {str(self.path)!r} cannot be made: {error.strerror}") from None

    def check(self) -> None:
        """Refuse a folder that is no run."""
        if not self.config.is_file():
            what = "is no run folder (it has no run.toml)" if self.path.is_dir() else "does not exist"
            raise InputError(f"{str(self.path)!r} {what}; expected a folder that `noback train` made")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process is refused. The system lets go of the lock when the holder dies."""
        with open(self.path / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(
                    f"run folder {str(self.path)!r} is in use by another process; wait for it or stop it"
                ) from None
            yield

    def add_metrics(self, **values: Any) -> None:
        """Append one line of metrics. Nothing but people depends on it, so a full disk here stops no run."""
        try:
            with open(self.metrics, "a+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - 1, 0))
                torn = file.read(1) not in (b"", b"\n")  # a killed process left half a line
                file.write(b"\n" * torn + json_text(values).encode() + b"\n")
        except OSError:
            return

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every whole line of metrics; one that a killed process left torn is skipped."""
        found = []
        if self.metrics.is_file():
            for line in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return found


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unborn.write_text(text, encoding="utf-8")
        os.replace(unborn, path)
    except OSError as error:
        unborn.unlink(missing_ok=True)
        raise NobackError(f"cannot write {str(path)!r}: {error.strerror}") from None


def next_folder(parent: Path, name: str) -> Path:
    """The first of parent/name-001, parent/name-002, ... that does not exist."""
    number = 1
    while (parent / f"{name}-{number:03d}").exists():
        number += 1
    return parent / f"{name}-{number:03d}"

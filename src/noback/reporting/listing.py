"""Many runs as a list: a row each, read with care; what is no run, or is damaged, is a row with a sentence."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.errors import InputError, NobackError
from noback.json_text import number_in
from noback.reporting.reading import FINISHED, ReadRun, read_run

_DEEPEST = 3  # a reproduction's runs lie in FOLDER/NAME/runs/RUN
_METHOD = ("adapter", "estimator", "rule")


@dataclass(frozen=True, slots=True)
class Listed:
    """A run's row; of a folder that could not be read, `note` says why and the rest is None."""

    run: str
    began: float = 0.0  # Unix seconds
    state: str | None = None
    task: str | None = None
    model: str | None = None
    method: str | None = None  # adapter/estimator/rule
    steps: int | None = None  # taken
    planned: int | None = None
    before: float | None = None  # accuracy on the test set; the score where there is no accuracy
    after: float | None = None
    verdict: str | None = None
    bytes: int = 0
    note: str | None = None


def list_runs(
    folders: Sequence[Path], progress: Callable[[int, int], None] = lambda _done, _total: None
) -> list[Listed]:
    """The runs in some folders, and the folders among them that are none, oldest first."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"{str(folder)!r} is no folder; expected one that holds runs (`noback train` makes them in runs/)"
            )
    paths = list(dict.fromkeys(path for folder in folders for path in _found(folder)))
    rows = []
    for number, path in enumerate(paths, start=1):
        rows.append(_row(path))
        progress(number, len(paths))
    return sorted(rows, key=lambda row: (row.began, row.run))


def _found(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The folder itself where it is a run, else the runs within; a folder among them that holds none is given too."""
    if (folder / "run.toml").is_file() or depth == _DEEPEST:
        yield folder
        return
    within = [path for child in _children(folder) for path in _found(child, depth + 1)]
    runs = [path for path in within if (path / "run.toml").is_file()]
    if depth == 0:
        yield from within
    else:
        yield from runs or [folder]


def _children(folder: Path) -> list[Path]:
    """The folders in a folder, hidden ones and links left out."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in inside if not path.name.startswith(".") and not path.is_symlink() and path.is_dir()]


def _row(path: Path) -> Listed:
    size, changed = _measured(path)
    try:
        run = read_run(path, path.name)
        return _read(run, size, changed)
    except NobackError as error:
        return Listed(str(path), changed, bytes=size, note=str(error))
    except OSError as error:
        return Listed(str(path), changed, bytes=size, note=f"{str(path)!r} cannot be read: {error.strerror}")


def _read(run: ReadRun, size: int, changed: float) -> Listed:
    began, planned = number_in(run.last("start"), "time"), number_in(run.config, "steps")
    best = run.last("test", at="best") or run.last("test", at="final")
    return Listed(
        run=str(run.path),
        began=changed if began is None else began,
        state="diverged" if run.has_diverged and not run.going else run.state,
        task=_text(run.task),
        model=_text(run.option("model")),
        method="/".join(_text(run.option(f"{name}.kind")) for name in _METHOD),
        steps=len(run.steps),
        planned=None if planned is None else int(planned),
        before=_score(run.last("zero_shot")),
        after=_score(best) if run.state == FINISHED else None,
        verdict=run.judged().word,
        bytes=size,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "?"


def _score(line: dict[str, Any]) -> float | None:
    found = number_in(line, "accuracy")
    return number_in(line, "score") if found is None else found


def _measured(path: Path) -> tuple[int, float]:
    """The bytes of the regular files in a folder, no link followed, and when its configuration was written."""
    total, changed = 0, 0.0
    for where, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(where, name))  # noqa: PTH118 (a path as os.walk gives it)
            except OSError:
                continue
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
            changed = found.st_mtime if name == "run.toml" and Path(where) == path else changed
    return total, changed

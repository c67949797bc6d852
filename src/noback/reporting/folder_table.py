"""A table that a command left in a folder: `comparison.json`, `epsilon.json`, `sweep.json` and others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.errors import DamagedError
from noback.files import is_regular, read_json


@dataclass(frozen=True, slots=True)
class FolderTable:
    """The rows of such a file, and everything else it says."""

    kind: str
    path: Path  # the folder
    rows: list[dict[str, Any]]
    values: dict[str, Any]


def read_table(folder: Path, kind: str) -> FolderTable | None:
    """The folder's table of this kind, if it has one; what is no such table is refused."""
    path = folder / f"{kind}.json"
    if not is_regular(path):
        return None
    values = read_json(path)
    rows = values.get("rows") if isinstance(values, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DamagedError(f"{str(path)!r} has no list of rows; expected what `noback` writes there: make it anew")
    return FolderTable(kind, folder, rows, values)


def lead_of(table: FolderTable) -> str:
    """What was tried, in one line."""
    config = table.values.get("config")
    config = config if isinstance(config, dict) else {}
    methods = {name: config[name].get("kind") for name in ("estimator", "rule") if isinstance(config.get(name), dict)}
    known = {**table.values, "model": config.get("model"), **methods}
    names = ("task", "model", "estimator", "rule", "batch")
    said = [f"{name} {known[name]}" for name in names if known.get(name) is not None]
    counts = [f"{known[name]} {name}" for name in ("steps", "directions") if known.get(name) is not None]
    return " · ".join(said + counts)

"""What a reproduction's file says: a row a method and number of shots, an entry a task, and the cells behind each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.json_text import number_in
from noback.reporting.folder_table import FolderTable

NOT_YET = "not run yet"  # also what the file says of a seed of which no cell has ended


@dataclass(frozen=True, slots=True)
class MeanAccuracy:
    """A mean over seeds in percent; the deviation of one seed is not known."""

    mean: float
    std: float | None


@dataclass(frozen=True, slots=True)
class Entry:
    """How a method did on a task, as far as its seeds have ended."""

    found: MeanAccuracy | None
    published: MeanAccuracy | None
    seeds: int
    planned_seeds: int
    lrs: tuple[float, ...]  # chosen by validation, one a seed; none where there was no choice
    gaps: tuple[str, ...]  # each sentence once
    cells: tuple[str, ...]  # the names of every cell that belongs to it


@dataclass(frozen=True, slots=True)
class Row:
    """A method at a number of shots; 0 where it needs none."""

    method: str
    shots: int
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A reproduction as it stands."""

    grid: Mapping[str, Any]
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: Mapping[str, Mapping[str, Any]]

    @property
    def planned(self) -> int:
        """How many cells the rows stand for; 0 where the file holds cells that no row accounts for."""
        names = {name for row in self.rows for entry in row.entries.values() for name in entry.cells}
        return len(names) if names.issuperset(self.cells) else 0

    @property
    def has_published(self) -> bool:
        """Whether a published figure stands beside one of its own."""
        return any(entry.published for row in self.rows for entry in row.entries.values())

    def titles(self) -> list[str]:
        """A name a row: the method, and the shots too where several were tried."""
        several = len({row.shots for row in self.rows if row.shots}) > 1
        return [f"{row.method}, k {row.shots}" if several and row.shots else row.method for row in self.rows]


def reproduced(table: FolderTable) -> Reproduced:
    """The file's content; what is missing or no such thing is left out."""
    grid = mapping(table.values.get("grid"))
    found = mapping(table.values.get("cells"))
    cells = {name: cell for name, cell in found.items() if isinstance(cell, Mapping)}
    tasks = [*listed(grid, "tasks"), *(task for row in table.rows for task in mapping(row.get("tasks")))]
    names = tuple(dict.fromkeys(map(str, tasks)))
    return Reproduced(grid, names, tuple(_row(row, grid, names, cells) for row in table.rows), cells)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a table, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(table: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key, or an empty one."""
    value = table.get(key)
    return value if isinstance(value, list) else []


def _row(
    row: Mapping[str, Any], grid: Mapping[str, Any], tasks: Iterable[str], cells: Mapping[str, Mapping[str, Any]]
) -> Row:
    method, shots = str(row.get("method", "")), int(number_in(row, "shots") or 0)
    # What needs no shots does not depend on the examples that are drawn: it runs once, under the first of each.
    seeds = listed(grid, "seeds") if shots else listed(grid, "seeds")[:1]
    drawn = [shots] if shots else listed(grid, "shots")[:1]
    ends, entries = _ends(grid, method), {}
    for task in tasks:
        name = Path(task).stem  # as the grid names the cells of a task that is given by its path
        names = tuple(f"{name}-k{count}-seed{seed}-{end}" for count in drawn for seed in seeds for end in ends)
        values = mapping(mapping(row.get("tasks")).get(task))
        chosen = values if len(ends) > 1 else {**values, "lrs": []}
        entries[task] = _entry(chosen, names, len(seeds), cells)
    return Row(method, shots, entries)


def _ends(grid: Mapping[str, Any], method: str) -> list[str]:
    """How the cells of a method end, as `noback.reproduction.grid` names them: its slug and a learning rate."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in method.lower()).strip("-")
    known = [one for one in listed(grid, "methods") if isinstance(one, Mapping) and str(one.get("name")) == method]
    lrs = [lr for one in known for lr in listed(one, "lrs") or [None]]
    return [f"{slug}-lr{lr:g}" if isinstance(lr, (int, float)) else slug for lr in lrs]


def _entry(
    values: Mapping[str, Any], names: tuple[str, ...], planned_seeds: int, cells: Mapping[str, Mapping[str, Any]]
) -> Entry:
    said = [values.get("gap"), *(cells.get(name, {}).get("gap") for name in names)]
    gaps = dict.fromkeys(str(gap) for gap in said if gap and gap != NOT_YET)
    known = dict(zip(("mean", "std"), listed(values, "published"), strict=False))
    return Entry(
        found=_accuracy(values),
        published=_accuracy(known),
        seeds=int(number_in(values, "seeds") or 0),
        planned_seeds=planned_seeds,
        lrs=tuple(lr for lr in listed(values, "lrs") if isinstance(lr, (int, float))),
        gaps=tuple(gaps),
        cells=names,
    )


def _accuracy(values: Mapping[str, Any]) -> MeanAccuracy | None:
    mean = number_in(values, "mean")
    return MeanAccuracy(mean, number_in(values, "std")) if mean is not None else None

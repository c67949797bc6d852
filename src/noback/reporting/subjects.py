"""What a report is about: runs, or the table that a command left in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from noback.errors import InputError
from noback.reporting.blocks import Page
from noback.reporting.comparison import COMPARISON, comparison_page
from noback.reporting.epsilon import EPSILON, epsilon_page
from noback.reporting.folder_table import FolderTable, read_table
from noback.reporting.methods import METHODS, methods_page
from noback.reporting.reading import ReadRun, distinct_names, read_run
from noback.reporting.reproduction import REPRODUCTION, reproduction_page
from noback.reporting.runs_page import run_page, runs_page
from noback.reporting.sweep import SWEEP, sweep_page

_TABLES = (COMPARISON, EPSILON, REPRODUCTION, SWEEP, METHODS)


@dataclass(frozen=True, slots=True)
class Subject:
    """The runs, and the table they belong to where there is one."""

    paths: tuple[Path, ...]
    runs: tuple[ReadRun, ...]
    table: FolderTable | None
    repeated: tuple[str, ...]  # folders that were given more than once

    @property
    def kind(self) -> str:
        """run, runs, comparison, epsilon, reproduction, sweep or methods."""
        if self.table:
            return self.table.kind
        return "run" if len(self.runs) == 1 else "runs"


def read_subject(given: Sequence[str]) -> Subject:
    """Read every folder that was given, each once."""
    paths, repeated = _each_once([Path(text) for text in given])
    tables = [table for path in paths for kind in _TABLES if (table := read_table(path, kind))]
    if tables and len(paths) > 1:
        table = tables[0]
        raise InputError(
            f"{str(table.path)!r} holds a {table.kind} ({table.kind}.json), which has a page of its own; "
            f"report it alone: noback report {table.path}"
        )
    if tables:
        return Subject(paths, _runs_within(tables[0]), tables[0], repeated)
    names = distinct_names(paths)
    return Subject(paths, tuple(map(read_run, paths, names)), None, repeated)


def page_of(subject: Subject, flags: Mapping[str, str]) -> Page:
    """The page about a subject; `flags` says where each flag of `train` stands in a configuration."""
    if subject.table and subject.table.kind == COMPARISON:
        return comparison_page(subject.table, subject.runs, flags)
    if subject.table and subject.table.kind == SWEEP:
        return sweep_page(subject.table, subject.runs)
    if subject.table and subject.table.kind == METHODS:
        return methods_page(subject.table)
    if subject.table:
        return epsilon_page(subject.table) if subject.table.kind == EPSILON else reproduction_page(subject.table)
    return run_page(subject.runs[0], flags) if len(subject.runs) == 1 else runs_page(subject.runs, flags)


def _each_once(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    kept: dict[Path, Path] = {}
    repeated = []
    for path in paths:
        if kept.setdefault(path.resolve(), path) is not path:
            repeated.append(str(path))
    return tuple(kept.values()), tuple(repeated)


def _runs_within(table: FolderTable) -> tuple[ReadRun, ...]:
    """The runs that a table's rows name and whose folders are there."""
    names = [str(row.get("name", "")) for row in table.rows]
    plain = [name for name in dict.fromkeys(names) if name and Path(name).name == name]
    return tuple(read_run(table.path / name, name) for name in plain if (table.path / name / "run.toml").is_file())

"""The page of a reproduction: its table beside the published one, charts, what it took, and what was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from noback.json_text import number_in
from noback.reporting.blocks import Block, Cell, Charts, Note, Page, Section, Table
from noback.reporting.folder_table import FolderTable
from noback.reporting.formats import NOTHING, duration, figure, memory, plain
from noback.reporting.reproduced import NOT_YET, Entry, MeanAccuracy, Reproduced, listed, mapping, reproduced
from noback.reporting.reproduction_charts import task_charts
from noback.reporting.setup import option_text

REPRODUCTION = "reproduction"
_LEGEND = "Accuracy on the test set in percent: mean (standard deviation) over seeds."
_PUBLISHED = "In brackets the published figure: RoBERTa-large, 100,000 steps of MeZO, five seeds."
_RATES = "Where several learning rates (lr) were tried, the one that validation chose is named."
_CHARTS = "Full points: here. Bars: one standard deviation."
_HOLLOW = "Hollow points: published, with RoBERTa-large."
_MEMORY = "Peak memory is that of the whole process while a cell ran, Python and its libraries included."


def reproduction_page(table: FolderTable) -> Page:
    """The table with its gaps, a chart a task, the cost of each method, and the grid."""
    found = reproduced(table)
    charts = task_charts(found)
    sections = [
        Section("Accuracy", _accuracy(found), in_summary=True),
        Section("Task by task", (_charts_note(found), Charts(charts)) if charts else ()),
        Section("Time and memory", _cost(found), in_summary=True),
        Section("What was run", _grid(found, mapping(table.values.get("versions"))), in_summary=True),
    ]
    model = found.grid.get("model")
    title = f"Reproduction with {model}" if model else "Reproduction"
    state = _state(found, number_in(table.values, "seconds"))
    return Page(title, str(found.grid.get("about") or ""), state, tuple(one for one in sections if one.blocks))


def _charts_note(found: Reproduced) -> Note:
    return Note(f"{_CHARTS} {_HOLLOW}" if found.has_published else _CHARTS)


def _state(found: Reproduced, seconds: float | None) -> str:
    """How many cells have ended, how many of them as gaps, and how long they took."""
    ended, gaps = len(found.cells), sum("gap" in cell for cell in found.cells.values())
    if not ended:
        return NOT_YET
    going = ended < found.planned
    said = f"not finished: {ended} of {found.planned} cells ended" if going else f"{_counted(ended, 'cell')} ended"
    took = f" in {duration(seconds)}" if seconds is not None else ""
    return said + took + (f"; {_counted(gaps, 'gap')}" if gaps else "")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


# The table and its gaps


def _accuracy(found: Reproduced) -> tuple[Block, ...]:
    if not found.rows:
        return (Note(f"This reproduction has {NOT_YET}: no cell of its grid has ended."),)
    marks, rows = _marks(found), []
    for row in found.rows:
        name = f"{row.method}-{row.shots}"
        entries = [_cell(entry, marks, f"{name}-{task}") for task, entry in row.entries.items()]
        rows.append((Cell(row.method), Cell(str(row.shots or NOTHING), numeric=True), *entries))
    table = Table(("method", "k", *found.tasks), tuple(rows), first_is_head=True)
    chosen = any(entry.lrs for row in found.rows for entry in row.entries.values())
    legend = [_LEGEND, *([_PUBLISHED] if found.has_published else []), *([_RATES] if chosen else [])]
    return (Note(" ".join(legend)), table, *((_gaps(found, marks),) if marks else ()))


def _marks(found: Reproduced) -> dict[str, str]:
    """Each gap's sentence and its mark, numbered as the table shows them."""
    sentences = [gap for row in found.rows for entry in row.entries.values() for gap in entry.gaps]
    return {sentence: f"gap {number}" for number, sentence in enumerate(dict.fromkeys(sentences), start=1)}


def _cell(entry: Entry, marks: Mapping[str, str], name: str) -> Cell:
    """The accuracy, or why there is none; beneath it what is missing, the published figure and the learning rates."""
    missing = [f"{entry.seeds} of {entry.planned_seeds} seeds"] if 0 < entry.seeds < entry.planned_seeds else []
    missing += [marks[gap] for gap in entry.gaps]
    lines = [Cell(", ".join(missing))] if missing and entry.found else []
    if entry.published:
        lines.append(Cell(f"[{_text(entry.published)}]", entry.published.mean, f"{name}-published"))
    if entry.lrs:
        lines.append(Cell(_rates(entry.lrs)))
    if entry.found:
        return Cell(_text(entry.found), entry.found.mean, name, numeric=True, beneath=tuple(lines))
    if missing:
        return Cell(", ".join(missing), numeric=True, beneath=tuple(lines))
    return Cell("", numeric=True, beneath=(Cell(NOT_YET), *lines))


def _text(accuracy: MeanAccuracy) -> str:
    return f"{accuracy.mean:.1f}" + (f" ({accuracy.std:.1f})" if accuracy.std is not None else "")


def _rates(lrs: tuple[float, ...]) -> str:
    """The chosen learning rates, each once; where they differ, how many seeds chose it."""
    counts = sorted(Counter(lrs).items())
    several = len(counts) > 1
    return "lr " + ", ".join(f"{lr:g} x{count}" if several and count > 1 else f"{lr:g}" for lr, count in counts)


def _gaps(found: Reproduced, marks: Mapping[str, str]) -> Table:
    counts = Counter(str(cell["gap"]) for cell in found.cells.values() if cell.get("gap"))
    rows = [
        (Cell(str(number)), Cell(sentence), figure(counts.get(sentence), name=f"gap-{number}"))
        for number, sentence in enumerate(marks, start=1)
    ]
    return Table(("gap", "why", "cells"), tuple(rows), first_is_head=True)


# What it took


def _cost(found: Reproduced) -> tuple[Block, ...]:
    """A row a method, over every cell of it that has ended."""
    names: dict[str, list[str]] = {}
    for row in found.rows:
        names.setdefault(row.method, []).extend(name for entry in row.entries.values() for name in entry.cells)
    ended = {method: [found.cells[name] for name in own if name in found.cells] for method, own in names.items()}
    rows = [_cost_row(method, cells) for method, cells in ended.items() if cells]
    head = ("method", "cells ended", "forwards of a batch", "time", "peak memory")
    return (Table(head, tuple(rows), first_is_head=True), Note(_MEMORY)) if rows else ()


def _cost_row(method: str, cells: list[Mapping[str, Any]]) -> tuple[Cell, ...]:
    forwards, seconds, peaks = (
        [value for cell in cells if (value := number_in(cell, key)) is not None]
        for key in ("forwards", "seconds", "peak_memory_bytes")
    )
    return (
        Cell(method), figure(len(cells), name=f"{method}-cells"),
        figure(sum(forwards) if forwards else None, name=f"{method}-forwards"),
        figure(sum(seconds) if seconds else None, duration, f"{method}-seconds"),
        figure(max(peaks, default=None), memory, f"{method}-peak-memory"),
    )  # fmt: skip


# What was run


def _grid(found: Reproduced, versions: Mapping[str, Any]) -> tuple[Block, ...]:
    grid = found.grid
    facts = {
        "model": grid.get("model"), "data": grid.get("data"), "tasks": ", ".join(found.tasks),
        "shots per label (k)": ", ".join(map(str, listed(grid, "shots"))),
        "seeds": ", ".join(map(str, listed(grid, "seeds"))), "test examples, at most": grid.get("test_limit"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }  # fmt: skip
    rows = tuple((Cell(title), Cell(str(value))) for title, value in facts.items() if value)
    methods = tuple(_method(one) for one in listed(grid, "methods") if isinstance(one, Mapping))
    head = ("method", "training", "learning rates tried", "options")
    tables = (Table((), rows, first_is_head=True), Table(head, methods, first_is_head=True))
    return tuple(table for table in tables if table.rows)


def _method(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    lrs = ", ".join(plain(lr) for lr in listed(one, "lrs") if isinstance(lr, (int, float)))
    options = option_text(mapping(one.get("options")))
    return (
        Cell(str(one.get("name", ""))), Cell(str(one.get("baseline") or "noback")), Cell(lrs or NOTHING),
        Cell(options or NOTHING),
    )  # fmt: skip

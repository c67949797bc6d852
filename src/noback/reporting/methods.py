"""The page of a comparison of methods: accuracy at equal forwards and equal time, a panel a task, what was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.json_text import number_in
from noback.reporting.blocks import Block, Cell, Chart, Charts, Note, Page, Section, Table
from noback.reporting.drawing import axis, colour, dash, drawn, group, literal
from noback.reporting.folder_table import FolderTable
from noback.reporting.formats import NOTHING
from noback.reporting.reproduced import listed, mapping
from noback.reporting.setup import option_text

METHODS = "methods"
_UNITS = {"forwards": "forwards of a batch", "seconds": "seconds of training"}
_LEGEND = (
    "Accuracy on the test set in percent, mean over tasks and seeds, with the weights as they stand when the budget is "
    "spent. Each method's learning rate was chosen by validation from as many trials."
)


def methods_page(table: FolderTable) -> Page:
    """Tables by kind of budget, a chart a task and number of shots, yardsticks, gaps and the methods."""
    plan = mapping(table.values.get("plan"))
    grid = mapping(plan.get("grid"))
    sections = [
        Section(f"At equal {kind}", _budget_table(table.rows, kind, listed(plan, kind)), in_summary=True)
        for kind in _UNITS
        if listed(plan, kind)
    ]
    sections += [
        Section("Yardsticks", _yardsticks(table.rows), in_summary=True),
        Section("Task by task", _panels(table.rows, listed(plan, "forwards"))),
        Section("What was run", (_run_table(grid, listed(table.values, "machines")), _methods_table(grid))),
    ]
    gaps = mapping(table.values.get("gaps"))
    state = f"{len(gaps)} runs are gaps" if gaps else ""
    return Page(
        f"Methods with {grid.get('model', 'a model')}", str(grid.get("about") or ""), state,
        tuple(one for one in sections if one.blocks),
    )  # fmt: skip


def _courses(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if not row.get("yardstick")]


def _budget_table(rows: Sequence[Mapping[str, Any]], kind: str, budgets: Sequence[Any]) -> tuple[Block, ...]:
    courses = _courses(rows)
    if not courses:
        return ()
    reached = kind == "forwards"
    head = ("method", "k", *(f"{budget:g}" for budget in budgets), *(("reaches the first at",) if reached else ()))
    found = []
    for row in courses:
        name = f"{row.get('method')}-{row.get('shots')}-{kind}"
        cells = [_at(row, kind, place, f"{name}-{budget:g}") for place, budget in enumerate(budgets)]
        last = number_in(row, "reaches_reference_at")
        never = NOTHING if _is_partial(row) else "never"
        end = (Cell(f"{last:g}" if last else never, last, f"{name}-reached", numeric=True),) if reached else ()
        found.append((Cell(_named(row)), Cell(str(row.get("shots")), numeric=True), *cells, *end))
    note = f"{_LEGEND} Columns: {_UNITS[kind]}. Beneath: the difference to the first method, with its 95 % interval."
    return Note(note), Table(head, tuple(found), first_is_head=True)


def _at(row: Mapping[str, Any], kind: str, place: int, name: str) -> Cell:
    """A mean and, beneath it, the difference to the reference."""
    values, differences = listed(row, kind), listed(row, f"{kind}_difference")
    mean = values[place] if place < len(values) else None
    difference = differences[place] if place < len(differences) else None
    beneath: tuple[Cell, ...] = ()
    if isinstance(difference, list) and len(difference) == 3:
        change, low, high = difference
        beneath = (Cell(f"{change:+.1f} ({low:+.1f} to {high:+.1f})"),)
    if not isinstance(mean, (int, float)):
        return Cell(NOTHING, numeric=True, beneath=beneath)
    return Cell(f"{mean:.1f}", mean, name, numeric=True, beneath=beneath)


def _is_partial(row: Mapping[str, Any]) -> bool:
    """Whether some of a row's runs have not ended: its differences are of those that have, and it has no mean."""
    runs, planned = number_in(row, "runs"), number_in(row, "planned")
    return runs is not None and planned is not None and runs < planned


def _named(row: Mapping[str, Any]) -> str:
    name = str(row.get("method"))
    return f"{name} ({row['runs']} of {row['planned']} runs)" if _is_partial(row) else name


def _yardsticks(rows: Sequence[Mapping[str, Any]]) -> tuple[Block, ...]:
    found = []
    for row in (row for row in rows if row.get("yardstick")):
        end = number_in(row, "end")
        name = f"{row.get('method')}-{row.get('shots')}-end"
        text = NOTHING if end is None else f"{end:.1f}"
        found.append((Cell(_named(row)), Cell(str(row.get("shots"))), Cell(text, end, name, numeric=True)))
    return (Table(("method", "k", "accuracy at its end"), tuple(found), first_is_head=True),) if found else ()


def _panels(rows: Sequence[Mapping[str, Any]], budgets: Sequence[Any]) -> tuple[Block, ...]:
    """A chart for each task and number of shots: the course of each method, yardsticks as level lines."""
    shots = list(dict.fromkeys(row.get("shots") for row in rows))
    tasks = list(dict.fromkeys(task for row in rows for task in mapping(row.get("tasks"))))
    names = list(dict.fromkeys(str(row.get("method")) for row in rows))
    charts = []
    for task in tasks:
        for number in shots:
            own = [row for row in rows if row.get("shots") == number]
            traces = [trace for row in own if (trace := _trace(row, task, budgets, names))]
            if traces:
                figure = drawn(traces, axis("forwards of a batch", type="log"), axis("accuracy (%)"))
                charts.append(Chart(f"{task}-{number}", f"{task}, k = {number}", figure))
    return (Charts(tuple(charts), tuple(names)),) if charts else ()


def _trace(row: Mapping[str, Any], task: str, budgets: Sequence[Any], names: Sequence[str]) -> go.Scatter | None:
    entry, index = mapping(mapping(row.get("tasks")).get(task)), names.index(str(row.get("method")))
    end = number_in(entry, "end")
    level = [end] * len(budgets) if end is not None else []
    values = level if row.get("yardstick") else listed(entry, "forwards")
    known = [(x, y) for x, y in zip(budgets, values, strict=False) if isinstance(y, (int, float))]
    if not known:
        return None
    style = "dot" if row.get("yardstick") else dash(index)
    return go.Scatter(
        x=[x for x, _ in known], y=[y for _, y in known], name=literal(names[index]), legendgroup=group(index),
        mode="lines" if row.get("yardstick") else "lines+markers",
        line={"color": colour(index), "width": 2, "dash": style},
    )  # fmt: skip


def _run_table(grid: Mapping[str, Any], machines: Sequence[Any]) -> Table:
    facts = {
        "model": grid.get("model"), "tasks": ", ".join(map(str, listed(grid, "tasks"))),
        "shots per label (k)": ", ".join(map(str, listed(grid, "shots"))),
        "all examples in place of the largest k": ", ".join(map(str, listed(grid, "all_of"))),
        "seeds": ", ".join(map(str, listed(grid, "seeds"))), "test examples, at most": grid.get("test_limit"),
        "machine": "; ".join(_described(mapping(one)) for one in machines),
    }  # fmt: skip
    rows = tuple((Cell(title), Cell(str(value))) for title, value in facts.items() if value)
    return Table((), rows, first_is_head=True)


def _described(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)


def _methods_table(grid: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            Cell(str(one.get("name", ""))), Cell(str(one.get("baseline") or "noback")),
            Cell(", ".join(f"{lr:g}" for lr in listed(one, "lrs") if isinstance(lr, (int, float))) or NOTHING),
            Cell(option_text(mapping(one.get("options"))) or NOTHING),
        )
        for one in listed(grid, "methods")
        if isinstance(one, Mapping)
    )  # fmt: skip
    return Table(("method", "training", "learning rates tried", "options"), rows, first_is_head=True)

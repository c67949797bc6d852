"""The page of a sweep: its settings by validation, the one that won, and every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.json_text import number_in
from noback.reporting.blocks import Block, Cell, Chart, Charts, Command, Note, Page, Section, Table
from noback.reporting.curves import curves
from noback.reporting.drawing import axis, colour, drawn, literal, name_axis, name_height
from noback.reporting.folder_table import FolderTable, lead_of
from noback.reporting.formats import NOTHING, duration, figure_in, short
from noback.reporting.reading import ReadRun
from noback.reporting.setup import option_text

SWEEP = "sweep"
_CURVES = 12  # runs whose curves are laid over each other; more cannot be told apart


def sweep_page(table: FolderTable, runs: Sequence[ReadRun]) -> Page:
    """The settings as a table and a chart, the winner's command, the runs, and their curves where they are few."""
    settings = _tables(table.values.get("settings"))
    unfinished = table.values.get("finished") is False
    note = (Note("This sweep is not finished: some of its runs are missing here.", warns=True),) if unfinished else ()
    charts, overlaid = _chart(settings), runs[:_CURVES]
    more = f"The curves of the first {_CURVES} of {len(runs)} runs."
    drawn_curves: tuple[Block, ...] = (
        Charts(curves(dict(enumerate(overlaid))), tuple(run.name for run in overlaid)),
        *((Note(more),) if len(runs) > _CURVES else ()),
    )
    sections = [
        Section("Best by validation", (*note, *_winner(table)), in_summary=True),
        Section("Settings", (_settings_table(settings),) if settings else (), in_summary=True),
        Section("Validation score", (Charts(charts),) if charts else ()),
        Section("Runs", (_runs_table(table.rows),) if table.rows else ()),
        Section("Curves", drawn_curves if overlaid else ()),
    ]
    title = f"{len(settings)} settings, {len(table.rows)} runs"
    state = "not finished" if unfinished else "finished"
    return Page(title, lead_of(table), state, tuple(section for section in sections if section.blocks))


def _tables(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _title(entry: Mapping[str, Any]) -> str:
    """`lr 1e-05, eps 0.001`"""
    setting = entry.get("setting")
    if not isinstance(setting, Mapping) or not setting:
        return "as given"
    return ", ".join(f"{path.rsplit('.', maxsplit=1)[-1]} {option_text(value)}" for path, value in setting.items())


def _winner(table: FolderTable) -> tuple[Block, ...]:
    winner = table.values.get("winner")
    if not isinstance(winner, dict):
        return (Note("No setting has a result for each of its seeds yet, so none is chosen.", warns=True),)
    why = "highest mean validation score over the seeds; of equal ones, the lower mean validation loss"
    command = winner.get("command")
    repeat = (Command((command,)),) if isinstance(command, str) else ()
    return (Note(f"{_title(winner)} ({why})"), *repeat)


def _settings_table(settings: Sequence[dict[str, Any]]) -> Table:
    head = ("setting", "seeds", "validation score", "validation loss", "test before", "test after", "diverged")
    rows = tuple(
        (
            Cell(_title(entry)), figure_in(entry, "ended"), _mean(entry, "validation", f"setting-{index}-validation"),
            _mean(entry, "validation_loss"), _mean(entry, "before"), _mean(entry, "test"), figure_in(entry, "diverged"),
        )
        for index, entry in enumerate(settings)
    )  # fmt: skip
    return Table(head, rows, "Means over the seeds, standard deviations in brackets", first_is_head=True)


def _mean(entry: dict[str, Any], key: str, name: str = "") -> Cell:
    mean, std = number_in(entry, key), number_in(entry, f"{key}_std")
    spread = "" if std is None else f" ({std:.3f})"
    return Cell(NOTHING if mean is None else f"{mean:.3f}{spread}", mean, name, numeric=True)


def _runs_table(rows: Sequence[dict[str, Any]]) -> Table:
    head = (
        "run",
        "verdict",
        "validation score",
        "validation loss",
        "test before",
        "test after",
        "best step",
        "steps",
        "time",
    )
    cells = tuple(
        (
            Cell(str(row.get("name"))), Cell(str(row.get("verdict", ""))),
            *(figure_in(row, key, short) for key in ("validation", "validation_loss", "before", "test")),
            figure_in(row, "best_step"), figure_in(row, "steps"), figure_in(row, "seconds", duration),
        )
        for row in rows
    )  # fmt: skip
    return Table(head, cells, first_is_head=True)


def _chart(settings: Sequence[dict[str, Any]]) -> tuple[Chart, ...]:
    """One point a setting, with the spread over its seeds."""
    traces = []
    for index, entry in enumerate(settings):
        mean = number_in(entry, "validation")
        if mean is None:
            continue
        spread = {"type": "data", "array": [number_in(entry, "validation_std") or 0.0], "thickness": 2, "width": 5}
        traces.append(
            go.Scatter(
                x=[mean], y=[-index], error_x=spread, mode="markers", name=literal(_title(entry)), showlegend=False,
                marker={"color": colour(0), "size": 10},
            )
        )  # fmt: skip
    y = name_axis([_title(entry) for entry in settings])
    figure = drawn(traces, axis("validation score"), y, max(name_height(len(settings)), 280))
    note = "Point: the mean over the seeds. Bar: one standard deviation to either side."
    return (Chart("sweep-validation", "Validation score by setting", figure, note),) if traces else ()

"""The page of a search for eps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.json_text import number_in
from noback.reporting.blocks import Cell, Chart, Charts, Note, Page, Section, Table
from noback.reporting.drawing import SLOPE, axis, colour, dash, drawn, group, literal, log_axis, percent_axis
from noback.reporting.folder_table import FolderTable, lead_of
from noback.reporting.formats import NOTHING, duration, figure_in, percent, plain, scientific, short

EPSILON = "epsilon"
_SHARES = [-0.04, 1.04]

_Column = tuple[str, str, Callable[[float], str]]  # its title, its key in a row, how its number is shown
_COLUMNS: tuple[_Column, ...] = (
    ("slopes that are not zero", "nonzero_share", percent), ("mean size of all slopes", "mean_abs_slope", short),
    ("agreement with the reference", "agreement", "{:.3f}".format), ("same sign", "same_sign", percent),
    ("curvature", "curvature", scientific), ("mean size of the curvature", "mean_abs_curvature", scientific),
)  # fmt: skip


def epsilon_page(table: FolderTable) -> Page:
    """The recommendations, the charts against eps, and the rows."""
    recommended = _recommendations(table.values)
    charts = _charts(table)
    sections = [
        Section("Recommended eps", (recommended,) if recommended.rows else (), in_summary=True),
        Section("Against eps", (Charts(charts, tuple(_objectives(table))),) if charts else ()),
        Section("Every eps", (_rows(table),), in_summary=True),
    ]
    seconds, forwards = number_in(table.values, "seconds"), number_in(table.values, "forwards")
    took = [duration(seconds)] if seconds is not None else []
    took += [f"{forwards:,} forwards"] if forwards is not None else []
    return Page("Search for eps", lead_of(table), ", ".join(took), tuple(one for one in sections if one.blocks))


def _objectives(table: FolderTable) -> list[str]:
    """Each objective once, in the order of the rows."""
    return list(dict.fromkeys(str(row.get("objective", "")) for row in table.rows))


def _recommendations(values: Mapping[str, Any]) -> Table:
    found = values.get("recommendations")
    rows = tuple(
        (Cell(str(one.get("objective", ""))), figure_in(one, "eps", plain, f"recommended-{one.get('objective')}"),
         Cell(str(one.get("reason", NOTHING))))
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, dict)
    )  # fmt: skip
    return Table(("objective", "eps", "reason"), rows, first_is_head=True)


def _rows(table: FolderTable) -> Table | Note:
    known = [column for column in _COLUMNS if any(number_in(row, column[1]) is not None for row in table.rows)]
    rows = tuple((Cell(str(row.get("objective", ""))), *_figures(row, known)) for row in table.rows)
    if not rows:
        return Note("No eps has been tried yet.")
    return Table(("objective", "eps", *(title for title, _, _ in known)), rows, first_is_head=True)


def _figures(row: dict[str, Any], columns: Sequence[_Column]) -> list[Cell]:
    name = f"{row.get('objective')}-{row.get('eps')}"
    return [figure_in(row, "eps", plain), *(figure_in(row, key, form, f"{name}-{key}") for _, key, form in columns)]


def _charts(table: FolderTable) -> tuple[Chart, ...]:
    reference = number_in(table.values, "reference")
    of = f" at eps {reference:g}" if reference is not None else ""
    bent = "How far the loss bends between the two sides: small beside the slope is good."
    found = [
        _chart(table, "nonzero_share", "Share of slopes that are not zero", percent_axis("slopes (%)", range=_SHARES)),
        _chart(table, "mean_abs_slope", "Mean size of all slopes", log_title=SLOPE),
        _chart(table, "agreement", f"Agreement with the slopes{of}", axis("correlation", range=[-1.08, 1.08])),
        _chart(
            table, "mean_abs_curvature", "Mean size of the curvature", log_title="|l+ - 2 l0 + l-| (loss)", note=bent
        ),
    ]
    return tuple(chart for chart in found if chart is not None)


def _chart(
    table: FolderTable, key: str, title: str, y: dict[str, Any] | None = None, *, log_title: str = "", note: str = ""
) -> Chart | None:
    """A column against eps; without an axis of its own, in powers of ten."""
    traces = _lines(table, key, log=y is None)
    if not traces:
        return None
    x = log_axis("eps", [eps for trace in traces for eps in trace.x])
    y = y or log_axis(log_title, [value for trace in traces for value in trace.y])
    return Chart(f"epsilon-{key}", title, drawn(traces, x, y), note)


def _lines(table: FolderTable, key: str, *, log: bool) -> list[go.Scatter]:
    """One line an objective; what is not known, or zero on a logarithmic axis, is a gap."""
    traces = []
    for index, objective in enumerate(_objectives(table)):
        rows = [row for row in table.rows if str(row.get("objective", "")) == objective]
        points = [(eps, number_in(row, key)) for row in rows if (eps := number_in(row, "eps"))]
        y = [value if value or not log else None for _, value in sorted(points, key=lambda point: point[0])]
        if any(value is not None for value in y):
            line = {"color": colour(index), "dash": dash(index), "width": 2}
            name = literal(objective)
            x = sorted(eps for eps, _ in points)
            traces.append(go.Scatter(x=x, y=y, mode="lines+markers", line=line, name=name, legendgroup=group(index)))
    return traces

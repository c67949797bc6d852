"""The charts of a reproduction: a task each, its accuracies beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from noback.reporting.blocks import Chart
from noback.reporting.drawing import axis, colour, drawn, literal, name_axis, name_height
from noback.reporting.reproduced import MeanAccuracy, Reproduced

_OURS, _PUBLISHED = colour(0), "var(--text-faint)"
_MARGIN = {"l": 56, "r": 16, "t": 8, "b": 44}  # pixels
_APART = 0.13  # of a row: how far a point lies above or below its middle


def task_charts(found: Reproduced) -> tuple[Chart, ...]:
    """One chart a task of which something is known, all on the same axis of accuracy."""
    x = axis("accuracy (%)", range=_range(found))
    y = name_axis(found.titles())
    charts = []
    for number, task in enumerate(found.tasks):
        entries = dict(enumerate(row.entries[task] for row in found.rows))
        ours = {place: entry.found for place, entry in entries.items() if entry.found}
        published = {place: entry.published for place, entry in entries.items() if entry.published}
        if ours:
            traces = [_points(ours, "here", _OURS)]
            traces += [_points(published, "published", _PUBLISHED, hollow=True)] if published else []
            figure = drawn(traces, x, y, name_height(len(found.rows)), margin=_MARGIN)
            charts.append(Chart(f"task-{number}", task, figure))
    return tuple(charts)


def _points(at: Mapping[int, MeanAccuracy], name: str, paint: str, *, hollow: bool = False) -> go.Scatter:
    """Means with their deviations, at the heights of their rows; what was found lies above what is published."""
    apart = -_APART if hollow else _APART
    bars = {"type": "data", "array": [one.std for one in at.values()], "thickness": 2, "width": 0, "color": paint}
    # A point in the colour of the page hides the bar behind it, as plotly's own hollow one does not.
    marker = {"color": "var(--surface)" if hollow else paint, "size": 10, "line": {"color": paint, "width": 2}}
    return go.Scatter(
        x=[one.mean for one in at.values()], y=[apart - place for place in at], error_x=bars, mode="markers",
        name=literal(name), marker=marker, hovertemplate="%{x:.1f}%",
    )  # fmt: skip


def _range(found: Reproduced) -> list[float]:
    """From the lowest to the highest end of a bar, with some room, within 0 and 100."""
    entries = [entry for row in found.rows for entry in row.entries.values()]
    known = [one for entry in entries for one in (entry.found, entry.published) if one]
    low = min((one.mean - (one.std or 0.0) for one in known), default=0.0)
    high = max((one.mean + (one.std or 0.0) for one in known), default=100.0)
    return [max(low - 4, 0.0), min(high + 4, 102.0)]

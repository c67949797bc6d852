"""The page of a comparison of objectives."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.json_text import number_in
from noback.reporting.accuracies import BEFORE, BEST, Accuracy, accuracy_of, chart_together, with_interval
from noback.reporting.blocks import Cell, Chart, Charts, Command, Judgement, Note, Page, Section, Table
from noback.reporting.command import command_to_repeat
from noback.reporting.conclusion import answered_of, conclusion, flips_table
from noback.reporting.curves import curves, slope_title
from noback.reporting.drawing import colour, drawn, group, literal, log_axis, name_axis, name_height, percent_axis
from noback.reporting.folder_table import FolderTable, lead_of
from noback.reporting.formats import NOTHING, duration, figure_in, percent, plain, short
from noback.reporting.reading import ReadRun

COMPARISON = "comparison"


def comparison_page(table: FolderTable, runs: Sequence[ReadRun], flags: Mapping[str, str]) -> Page:
    """The conclusion, the rows as a table and as charts, the curves of the runs that are there, and the command."""
    unfinished = table.values.get("finished") is False
    note = (Note("This comparison is not finished: some of its runs are missing here.", warns=True),)
    rows = _titled(table.rows)
    by_name = {run.name: run for run in runs}
    placed = {index: by_name[_name(row)] for index, row in enumerate(rows) if _name(row) in by_name}
    titled = {index: dataclasses.replace(run, name=_title(rows[index])) for index, run in placed.items()}
    charts = (*_charts(rows, slope_title(titled)), *curves(titled))
    tuned = str(table.values.get("tuned_note") or "")
    said = (Note(f"{tuned[0].upper()}{tuned[1:]}."),) if tuned else ()
    judged, flips = _concluded(rows, placed)
    sections = [
        Section("Conclusion", (judged,) if judged else (), in_summary=True),
        Section("Side by side", (*(note if unfinished else ()), *said, _table(rows)), in_summary=True),
        Section("Answers that changed", (flips,) if flips else (), in_summary=True),
        Section("Charts", (Charts(charts, tuple(map(_title, rows))),) if charts else ()),
        Section("What was run", _command(table, flags), in_summary=True),
    ]
    count = f"{len(rows)} runs" if len(rows) != 1 else "1 run"
    state = "not finished" if unfinished else "finished"
    return Page(f"{count} compared", lead_of(table), state, tuple(section for section in sections if section.blocks))


def concluded(table: FolderTable, runs: Sequence[ReadRun]) -> Judgement | None:
    """What a comparison says in words."""
    rows, by_name = _titled(table.rows), {run.name: run for run in runs}
    return _concluded(rows, {index: by_name[_name(row)] for index, row in enumerate(rows) if _name(row) in by_name})[0]


def _concluded(rows: Sequence[dict[str, Any]], runs: Mapping[int, ReadRun]) -> tuple[Judgement | None, Table | None]:
    """What the rows say in words, and which answers changed."""
    tested = []
    for index, row in enumerate(rows):
        run = runs.get(index)
        lines = (run.last("zero_shot"), run.last("test", at="best")) if run else ({}, {})
        tested.append(answered_of(_title(row), _name(row), row, lines))
    known = [one for one in tested if one is not None]
    return conclusion(known), flips_table(known)


def _command(table: FolderTable, flags: Mapping[str, str]) -> tuple[Command, ...]:
    """`noback compare` with the options, objectives and eps of the table; nothing where it does not name them."""
    config, objectives, eps = (table.values.get(key) for key in ("config", "objectives", "eps"))
    if not isinstance(config, dict) or not isinstance(objectives, list) or not objectives:
        return ()
    several = [each for each in eps if isinstance(each, int | float)] if isinstance(eps, list) else []
    estimator = config.get("estimator")
    if several and isinstance(estimator, dict):
        config = {**config, "estimator": {key: value for key, value in estimator.items() if key != "eps"}}
    parts = command_to_repeat(config, flags, "compare")
    named = shlex.join(["--objectives", ",".join(map(str, objectives))])
    asked = [shlex.join(["--eps", ",".join(f"{each!r}" for each in several)])] if several else []
    return (Command((parts[0], named, *asked, *parts[1:])),)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    head = (
        "objective", "verdict", "tuned", "weights tuned", "lr", "eps", "zero slopes", "mean size of all slopes",
        "before (95% interval)", "after, last", "after, best", "time", "forwards", "first loss",
        "last loss", "smallest to largest slope",
    )  # fmt: skip
    return Table(head, tuple(_row(row, _name(row)) for row in rows), first_is_head=True)


def _row(row: dict[str, Any], name: str) -> tuple[Cell, ...]:
    return (
        Cell(_title(row)), Cell(str(row.get("verdict", ""))), Cell(str(row.get("tuned") or NOTHING)),
        figure_in(row, "tuned_weights", name=f"{name}-tuned-weights"), figure_in(row, "lr", plain),
        figure_in(row, "eps", plain),
        figure_in(row, "zero_slope_share", percent, f"{name}-zero-slopes"),
        figure_in(row, "mean_abs_slope", short, f"{name}-mean-slope"), _accuracy(row, "before", f"{name}-before"),
        _accuracy(row, "after", f"{name}-after"), _accuracy(row, "best", f"{name}-best"),
        figure_in(row, "seconds", duration, f"{name}-seconds"), figure_in(row, "forwards"),
        figure_in(row, "first_loss", "{:.4f}".format), figure_in(row, "last_loss", "{:.4f}".format), _range(row),
    )  # fmt: skip


def _accuracy(row: dict[str, Any], key: str, name: str) -> Cell:
    return with_interval(accuracy_of(key, key, row, key), name)


def _range(row: dict[str, Any]) -> Cell:
    least, most = number_in(row, "min_abs_slope"), number_in(row, "max_abs_slope")
    known = least is not None and most is not None
    return Cell(f"{least:.3g} to {most:.3g}" if known else NOTHING, numeric=True)


def _titled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with a title: the objective, and the eps too where several were tried."""
    several = len({str(row.get("eps")) for row in rows}) > 1
    with_eps = [several and number_in(row, "eps") is not None for row in rows]
    names = [str(row.get("objective") or _name(row)) for row in rows]
    titles = [
        f"{name}, eps {row['eps']:g}" if eps else name for name, row, eps in zip(names, rows, with_eps, strict=True)
    ]
    return [{**row, "title": title} for row, title in zip(rows, titles, strict=True)]


def _title(row: dict[str, Any]) -> str:
    return str(row["title"])


def _name(row: dict[str, Any]) -> str:
    return str(row.get("name") or row.get("objective") or "")


def _accuracies(row: dict[str, Any]) -> list[Accuracy]:
    """Before, and after with the best weights; without those, with the last ones."""
    after = "best" if number_in(row, "best") is not None else "after"
    found = [accuracy_of(BEFORE, BEFORE, row, "before"), accuracy_of(BEST, BEST, row, after)]
    return [one for one in found if one is not None]


def _charts(rows: Sequence[dict[str, Any]], slope: str) -> tuple[Chart, ...]:
    named = [(_title(row), _accuracies(row)) for row in rows]
    return (*chart_together(named), *_zeros(rows), *_sizes(rows, slope))


def _zeros(rows: Sequence[dict[str, Any]]) -> list[Chart]:
    """One bar a row, in the colour of its curves."""
    shares = {index: number_in(row, "zero_slope_share") for index, row in enumerate(rows)}
    bars = [
        go.Bar(
            x=[share], y=[-index], orientation="h", width=0.5, marker={"color": colour(index)}, text=[percent(share)],
            textposition="outside", cliponaxis=False, name=literal(_title(rows[index])), legendgroup=group(index),
        )
        for index, share in shares.items()
        if share is not None
    ]  # fmt: skip
    x = percent_axis("zero slopes (%)", range=[0, 1.2], tickvals=[0, 0.5, 1], ticktext=["0%", "50%", "100%"])
    figure = drawn(bars, x, name_axis([*map(_title, rows)]), max(name_height(len(rows)), 280))
    return [Chart("compared-zeros", "Share of slopes that are exactly zero", figure)] if bars else []


def _sizes(rows: Sequence[dict[str, Any]], slope: str) -> list[Chart]:
    """The mean size of a slope, from the smallest to the largest; zero has no place on this axis."""
    traces, seen = [], []
    for index, row in enumerate(rows):
        mean, least, most = (number_in(row, key) for key in ("mean_abs_slope", "min_abs_slope", "max_abs_slope"))
        if not mean:
            continue
        low, high = least or mean, most or mean
        bar = {
            "type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low], "thickness": 2,
            "width": 5, "color": colour(index),
        }  # fmt: skip
        dot = {"color": colour(index), "size": 10}
        names = {"name": literal(_title(row)), "legendgroup": group(index)}
        traces.append(go.Scatter(x=[mean], y=[-index], error_x=bar, mode="markers", marker=dot, **names))
        seen += [low, high]
    figure = drawn(traces, log_axis(slope, seen), name_axis([*map(_title, rows)]), max(name_height(len(rows)), 280))
    note = "Point: the mean. Bar: from the smallest, unless it is zero, to the largest."
    return [Chart("compared-sizes", "Size of a slope", figure, note)] if traces else []

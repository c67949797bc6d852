"""The test set before and after: numbers with their intervals, and a small chart of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from noback.report.blocks import Cell, Chart, Stat, Table
from noback.report.drawing import axis, colour, drawn, literal, percent_axis
from noback.report.formats import NOTHING, figure_in, number_in, percent
from noback.report.numbers import Interval, wilson
from noback.report.reading import ReadRun

BEFORE, BEST, LAST = "before", "best", "last"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How the test set was answered by some weights."""

    name: str
    title: str
    share: float
    interval: Interval | None
    line: dict[str, object]


def accuracies(run: ReadRun) -> list[Accuracy]:
    """Before, with the best weights by validation, and with the last ones; what is not known is left out."""
    best, last = run.last("test", at="best"), run.last("test", at="final")
    found = [
        accuracy_of(BEFORE, "before", run.last("zero_shot")),
        accuracy_of(BEST, _titled("after, best by validation", best), best),
        accuracy_of(LAST, _titled("after, last", last), last),
    ]
    return [one for one in found if one is not None]


def accuracy_of(name: str, title: str, line: dict[str, object], key: str = "accuracy") -> Accuracy | None:
    """An accuracy from a line of metrics; without a count of examples it has no interval."""
    share, examples = number_in(line, key), number_in(line, "examples")
    if share is None:
        return None
    return Accuracy(name, title, share, wilson(share, examples) if examples and 0 <= share <= 1 else None, line)


def _titled(title: str, line: dict[str, object]) -> str:
    step = number_in(line, "step")
    return title if step is None else f"{title} (step {step})"


def interval_text(one: Accuracy) -> str:
    """The interval in percent."""
    return f"{one.interval.low:.1%} to {one.interval.high:.1%}" if one.interval else NOTHING


def accuracy_cell(one: Accuracy, prefix: str = "") -> Cell:
    """The accuracy as a figure of the page."""
    return Cell(percent(one.share), one.share, f"{prefix}accuracy-{one.name}", numeric=True)


def with_interval(one: Accuracy | None, name: str) -> Cell:
    """The accuracy with its interval in one cell."""
    if one is None:
        return Cell(NOTHING, numeric=True)
    text = f"{one.share:.1%}" + (f" ({one.interval.low:.1%} to {one.interval.high:.1%})" if one.interval else "")
    return Cell(text, one.share, name, numeric=True)


def stats_of(found: Sequence[Accuracy]) -> tuple[Stat, ...]:
    """The accuracies as large figures."""
    stats = []
    for one in found:
        examples = number_in(one.line, "examples")
        note = f"95% interval {interval_text(one)}, {examples:,} examples" if one.interval else ""
        stats.append(Stat(f"Test accuracy {one.title}", accuracy_cell(one), note))
    return tuple(stats)


def table_of(found: Sequence[Accuracy], metric: str) -> Table:
    """The accuracies with what else is known of the test set."""
    head = ["weights", "accuracy", "95% interval", "cross-entropy (nats)", "objective", "examples"]
    with_score = metric not in ("", "accuracy")
    rows = []
    for one in found:
        cells = [
            Cell(one.title), accuracy_cell(one, "table-"), Cell(interval_text(one), numeric=True),
            figure_in(one.line, "loss", name=f"loss-{one.name}"),
            figure_in(one.line, "objective", name=f"objective-{one.name}"), figure_in(one.line, "examples"),
        ]  # fmt: skip
        rows.append((*cells, figure_in(one.line, "score", name=f"score-{one.name}")) if with_score else tuple(cells))
    return Table((*head, metric) if with_score else tuple(head), tuple(rows), first_is_head=True)


def points_trace(found: Sequence[Accuracy], places: Sequence[float], index: int, name: str) -> go.Scatter:
    """Accuracies from left to right with their intervals, at given heights."""
    bars = [one.interval or Interval(one.share, one.share) for one in found]
    errors = {
        "type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": colour(index),
        "array": [bar.high - one.share for bar, one in zip(bars, found, strict=True)],
        "arrayminus": [one.share - bar.low for bar, one in zip(bars, found, strict=True)],
    }  # fmt: skip
    return go.Scatter(
        x=[one.share for one in found], y=list(places), error_x=errors, mode="markers", name=literal(name),
        legendgroup=literal(name), marker={"color": colour(index), "size": 10}, hovertemplate="%{x:.2%}",
    )  # fmt: skip


def chart_of(found: Sequence[Accuracy]) -> Chart:
    """The accuracies as points with their intervals."""
    places = [float(-index) for index in range(len(found))]
    titles = [literal({BEFORE: "before", BEST: "best", LAST: "last"}[one.name]) for one in found]
    y = axis("", tickvals=places, ticktext=titles, range=[0.6 - len(found), 0.6], showgrid=False, zeroline=False)
    figure = drawn([points_trace(found, places, 0, "test accuracy")], percent_axis("accuracy (%)"), y, height=200)
    return Chart("test-accuracy", "Test accuracy", figure, "Bars: 95% intervals (Wilson).")

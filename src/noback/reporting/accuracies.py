"""The test set before and after: numbers with their intervals, and a small chart of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from noback.counts import Interval, one_answer_score, wilson
from noback.json_text import number_in
from noback.reporting.answers import confusion_in
from noback.reporting.blocks import Cell, Chart, Stat, Table
from noback.reporting.drawing import colour, drawn, group, literal, name_axis, name_height, percent_axis
from noback.reporting.formats import NOTHING, figure, figure_in, percent, short
from noback.reporting.reading import ReadRun

BEFORE, PROBE, FROZEN, BEST, LAST = "before", "probe", "readout alone", "best", "last"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How the test set was answered by some weights."""

    name: str
    title: str
    share: float
    interval: Interval | None
    line: dict[str, object]


def accuracies(run: ReadRun) -> list[Accuracy]:
    """Before, what a readout gives alone, with the best weights and with the last; what is not known is left out."""
    best, last = run.last("test", at="best"), run.last("test", at="final")
    found = [
        accuracy_of(BEFORE, "before", run.last("zero_shot")),
        accuracy_of(PROBE, "linear probe, model untouched", run.last("linear_probe")),
        accuracy_of(FROZEN, "readout, model untouched", run.last("frozen_readout")),
        accuracy_of(BEST, "after, best by validation", best),
        accuracy_of(LAST, "after, last step", last),
    ]
    return [one for one in found if one is not None]


def accuracy_of(name: str, title: str, line: dict[str, object], key: str = "accuracy") -> Accuracy | None:
    """An accuracy from a line of metrics; without a count of examples it has no interval."""
    share, examples = number_in(line, key), number_in(line, "examples")
    if share is None:
        return None
    return Accuracy(name, title, share, wilson(share, examples) if examples and 0 <= share <= 1 else None, line)


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
    interval = f" ({100 * one.interval.low:.1f} to {100 * one.interval.high:.1f})" if one.interval else ""
    text = percent(one.share) + interval
    return Cell(text, one.share, name, numeric=True)


def stats_of(found: Sequence[Accuracy]) -> tuple[Stat, ...]:
    """The accuracies as large figures."""
    before = next((one.share for one in found if one.name == BEFORE), None)
    stats = []
    for one in found:
        change = "" if before is None or one.name == BEFORE else f"{100 * (one.share - before):+.1f} points"
        interval = f"95% interval {interval_text(one)}" if one.interval else ""
        stats.append(Stat(one.title.capitalize(), accuracy_cell(one), interval, change))
    return tuple(stats)


def table_of(found: Sequence[Accuracy], metric: str) -> Table:
    """The accuracies with what else is known of the test set."""
    head = ["weights", "step", "accuracy", "95% interval", "cross-entropy (nats)", "objective", "examples"]
    with_score = metric not in ("", "accuracy", "loss")
    others = [metric, f"{metric} of one answer to all"] if with_score else []
    rows = []
    for one in found:
        cells = [
            Cell(one.title), figure_in(one.line, "step"), accuracy_cell(one, "table-"),
            Cell(interval_text(one), numeric=True), figure_in(one.line, "loss", name=f"loss-{one.name}"),
            figure_in(one.line, "objective", name=f"objective-{one.name}"), figure_in(one.line, "examples"),
        ]  # fmt: skip
        scores = [figure_in(one.line, "score", name=f"score-{one.name}"), figure(_one_answer(one.line, metric), short)]
        rows.append((*cells, *scores) if with_score else tuple(cells))
    return Table((*head, *others), tuple(rows), first_is_head=True)


def _one_answer(line: Mapping[str, object], metric: str) -> float | None:
    """What one label as the answer to the whole set scores."""
    table = confusion_in(line)
    return one_answer_score(table, metric) if table else None


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
        legendgroup=group(index), marker={"color": colour(index), "size": 10}, hovertemplate="%{x:.2%}",
    )  # fmt: skip


def chart_of(found: Sequence[Accuracy]) -> Chart:
    """The accuracies as points with their intervals."""
    places = [float(-index) for index in range(len(found))]
    trace = points_trace(found, places, 0, "test accuracy")
    y = name_axis([one.name for one in found])
    figure = drawn([trace], percent_axis("accuracy (%)"), y, name_height(len(found)))
    return Chart("test-accuracy", "Accuracy with its 95% interval", figure, "Wilson's interval.")


def chart_together(named: Sequence[tuple[str, Sequence[Accuracy]]]) -> tuple[Chart, ...]:
    """Before (hollow) and after (full) with intervals, one row a run or objective."""
    traces = []
    for index, (name, found) in enumerate(named):
        shown = [one for one in found if one.name in (BEFORE, BEST)]
        places = [-index + (0.12 if one.name == BEFORE else -0.12) for one in shown]
        if shown:
            trace = points_trace(shown, places, index, name)
            trace.marker.symbol = ["circle-open" if one.name == BEFORE else "circle" for one in shown]
            traces.append(trace)
    names = [name for name, _ in named]
    figure = drawn(traces, percent_axis("accuracy (%)"), name_axis(names), max(name_height(len(names)), 280))
    note = "Hollow: before. Full: after, best by validation. Bars: 95% intervals."
    return (Chart("test-accuracy", "Test accuracy", figure, note),) if traces else ()

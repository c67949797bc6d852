"""The curves of one run, or of several laid over each other: x is the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.report.blocks import Chart
from noback.report.drawing import axis, colour, dash, drawn, legend_above, literal, log_axis, percent_axis
from noback.report.formats import number_in, percent
from noback.report.numbers import averaging_window, binned, kept_places, moving_average
from noback.report.reading import ReadRun

Runs = Sequence[ReadRun]


def curves(runs: Runs, prefix: str = "") -> tuple[Chart, ...]:
    """Every chart that has something to show; `prefix` keeps names apart where a page has several sets."""
    makers: list[Callable[[Runs], Chart | None]] = [_loss, _accuracy, _validation_loss, _slopes, _sizes, _zeros, _eps]
    charts = [chart for make in makers if (chart := make(runs)) is not None]
    return tuple(Chart(prefix + chart.name, chart.title, chart.figure, chart.note) for chart in charts)


def _line(index: int, run: ReadRun, x: Sequence[float], y: Sequence[float | None], **more: Any) -> go.Scatter:
    line = {"color": colour(index), "width": 2, "dash": dash(index), **more.pop("line", {})}
    settings = {"name": literal(run.name), "legendgroup": literal(run.name), "mode": "lines", **more}
    return go.Scatter(x=list(x), y=list(y), line=line, **settings)


def _loss(runs: Runs) -> Chart | None:
    traces = []
    for index, run in enumerate(runs):
        losses = [record.loss for record in run.steps]
        places = kept_places(losses)
        if not losses:
            continue
        smooth = moving_average(losses, averaging_window(len(losses)))
        each = {"name": literal(f"{run.name}, each step") if len(runs) > 1 else "each step"}
        mean = {"name": literal(f"{run.name}, average")} if len(runs) > 1 else {"name": "average"}
        traces.append(
            _line(index, run, places, [losses[i] for i in places], opacity=0.3, line={"width": 1, "dash": "solid"}, **each)
        )
        traces.append(_line(index, run, places, [smooth[i] for i in places], **mean))
    if not traces:
        return None
    windows = sorted({averaging_window(len(run.steps)) for run in runs if run.steps})
    window = str(windows[0]) if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    note = f"Faint: each step's batch. Strong: the average of the last {window} steps."
    return Chart("loss", "Training loss", drawn(traces, axis("step"), axis(_loss_title(runs))), note)


def _loss_title(runs: Runs) -> str:
    kinds = {str(run.option("objective.kind")) for run in runs}
    return {"cross_entropy": "cross-entropy (nats)", "accuracy": "1 - accuracy"}.get(*kinds, "objective") if len(
        kinds
    ) == 1 else "objective"


def _looked(run: ReadRun, key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the looks that have one."""
    looks = [(look, number_in(look, key)) for look in run.looks()]
    found = [(float(look["step"]), value) for look, value in looks if value is not None]
    return [step for step, _ in found], [value for _, value in found]


def _dotted(index: int, run: ReadRun, key: str, **more: Any) -> list[go.Scatter]:
    steps, values = _looked(run, key)
    return [_line(index, run, steps, values, mode="lines+markers", **more)] if steps else []


def _accuracy(runs: Runs) -> Chart | None:
    traces = [trace for index, run in enumerate(runs) for trace in _dotted(index, run, "accuracy")]
    if not traces:
        return None
    figure = drawn(traces, axis("step"), percent_axis("accuracy (%)"))
    return Chart("accuracy", "Validation accuracy", figure, "One point a look.")


def _validation_loss(runs: Runs) -> Chart | None:
    """The cross-entropy; of a single run with another objective, that too."""
    traces = [trace for index, run in enumerate(runs) for trace in _dotted(index, run, "loss")]
    if not traces:
        return None
    more: dict[str, Any] = {}
    if len(runs) == 1 and _looked(runs[0], "objective")[1] not in ([], _looked(runs[0], "loss")[1]):
        traces[0].update(name="cross-entropy (nats)")
        traces += _dotted(1, runs[0], "objective", name=f"objective ({literal(str(runs[0].option('objective.kind')))})")
        more = legend_above()
    title = "loss" if more else "cross-entropy (nats)"
    return Chart("validation-loss", "Validation loss", drawn(traces, axis("step"), axis(title), **more))


def _slopes(runs: Runs) -> Chart | None:
    traces = []
    for index, run in enumerate(runs):
        slopes = run.slopes
        steps = [record.step for record in run.steps for _ in record.slopes]
        places = kept_places(slopes)
        dots = {"color": colour(index), "size": 4, "opacity": 0.7}
        x, y = [steps[i] for i in places], [slopes[i] for i in places]
        if slopes:
            traces.append(_line(index, run, x, y, mode="markers", marker=dots))
    if not traces:
        return None
    figure = drawn(traces, axis("step"), axis("slope (loss a unit of distance)"))
    return Chart("slopes", "Slope along each direction", figure, "One point a direction and step.")


def _sizes(runs: Runs) -> Chart | None:
    """How often slopes of each size occur; several runs as lines, each over its own range."""
    shown = [(index, run) for index, run in enumerate(runs) if run.slopes]
    if not shown:
        return None
    traces = []
    for index, run in shown:
        bins = binned(run.slopes)
        shares = [count / len(run.slopes) for count in bins.counts]
        if len(runs) > 1:
            traces.append(_line(index, run, bins.centers, shares, line={"shape": "hvh"}))
        else:
            bars = {"color": colour(index)}
            traces.append(go.Bar(x=bins.centers, y=shares, width=bins.width, marker=bars, name=literal(run.name)))
    figure = drawn(traces, axis("slope (loss a unit of distance)"), percent_axis("share of slopes (%)"), bargap=0.05)
    return Chart("sizes", "Histogram of the slopes", figure, "; ".join(_zero_note(run, len(runs)) for _, run in shown))


def _zero_note(run: ReadRun, runs: int) -> str:
    slopes = run.slopes
    share = percent(sum(slope == 0.0 for slope in slopes) / len(slopes))
    return f"{run.name}: {share} exactly zero" if runs > 1 else f"{share} of {len(slopes):,} slopes are exactly zero."


def _zeros(runs: Runs) -> Chart | None:
    """The share of zero slopes by window, where there are any."""
    traces = []
    for index, run in enumerate(runs):
        windows = [(number_in(line, "step"), number_in(line, "zero_slope_share")) for line in run.lines("health")]
        known = [(step, share) for step, share in windows if step is not None and share is not None]
        if known:
            x, y = [step for step, _ in known], [share for _, share in known]
            traces.append(_line(index, run, x, y, mode="lines+markers"))
    if not any(share > 0 for trace in traces for share in trace.y):
        return None
    figure = drawn(traces, axis("step"), percent_axis("zero slopes (%)", range=[-0.04, 1.04]))
    return Chart("zeros", "Share of slopes that are exactly zero", figure, "One point a window between two looks.")


def _eps(runs: Runs) -> Chart | None:
    """eps by step, where ties made it grow."""
    if not any(run.contents and run.contents.eps_changes for run in runs):
        return None
    traces = []
    for index, run in enumerate(runs):
        first = run.option("estimator.eps")
        changes = run.contents.eps_changes if run.contents else []
        points = [(0, first)] * (first is not None) + [(change.step, change.eps) for change in changes]
        if points and run.steps:
            points.append((len(run.steps), points[-1][1]))
            x, y = [step for step, _ in points], [eps for _, eps in points]
            traces.append(_line(index, run, x, y, line={"shape": "hv"}))
    return Chart("eps", "eps", drawn(traces, axis("step"), log_axis("eps")), "Raised where too many slopes were zero.")

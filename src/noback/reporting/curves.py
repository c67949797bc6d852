"""The curves of one run, or of several laid over each other: x is the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.health import SLOPE_UNIT
from noback.json_text import number_in
from noback.reporting.blocks import Chart
from noback.reporting.drawing import axis, colour, dash, drawn, group, legend_above, literal, log_axis, percent_axis
from noback.reporting.formats import percent
from noback.reporting.numbers import POINTS, averaging_window, binned, binned_sizes, kept_places, moving_average
from noback.reporting.reading import ReadRun

Runs = Mapping[int, ReadRun]  # by the place of their colour


def curves(runs: Runs) -> tuple[Chart, ...]:
    """Every chart that has something to show."""
    makers: list[Callable[[Runs], Chart | None]] = [
        _loss,
        _accuracy,
        _reward,
        _validation_loss,
        _slopes,
        _sizes,
        _zeros,
        _eps,
    ]
    return tuple(chart for make in makers if (chart := make(runs)) is not None)


def _line(index: int, run: ReadRun, x: Sequence[float], y: Sequence[float | None], **more: Any) -> go.Scatter:
    line = {"color": colour(index), "width": 2, "dash": dash(index), **more.pop("line", {})}
    settings = {"name": literal(run.name), "legendgroup": group(index), "mode": "lines", **more}
    return go.Scatter(x=list(x), y=list(y), line=line, **settings)


def _loss(runs: Runs) -> Chart | None:
    traces = []
    for index, run in runs.items():
        losses = [record.loss for record in run.steps]
        places = kept_places(losses)
        if not losses:
            continue
        smooth = moving_average(losses, averaging_window(len(losses)))
        points, means = [losses[place] for place in places], [smooth[place] for place in places]
        of = f"{run.name}, " if len(runs) > 1 else ""
        faint = {"opacity": 0.3, "line": {"width": 1, "dash": "solid"}}
        traces.append(_line(index, run, places, points, name=literal(f"{of}each step"), **faint))
        traces.append(_line(index, run, places, means, name=literal(f"{of}average")))
    if not traces:
        return None
    windows = sorted({averaging_window(len(run.steps)) for run in runs.values() if run.steps})
    window = str(windows[0]) if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    note = f"Faint: each step's batch. Strong: the average of the last {window} steps."
    return Chart("loss", "Training loss", drawn(traces, axis("step"), axis(_loss_title(runs))), note)


def _loss_title(runs: Runs) -> str:
    """What the axis shows, where all runs share it."""
    kinds = {str(run.option("objective.kind")) for run in runs.values()}
    words = {"cross_entropy": "cross-entropy (nats)", "accuracy": "1 - accuracy", "macro_f1": "1 - macro F1"}
    words["reward"] = "minus the mean reward"
    words["language_model"] = "loss of the answers (nats a token)"
    return words.get(kinds.pop(), "objective") if len(kinds) == 1 else "objective"


def _evaluated(run: ReadRun, key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the evaluations that have one."""
    evaluations = [(one, number_in(one, key)) for one in run.evaluations()]
    found = [(float(one["step"]), value) for one, value in evaluations if value is not None]
    return [step for step, _ in found], [value for _, value in found]


def _dotted(index: int, run: ReadRun, key: str, **more: Any) -> list[go.Scatter]:
    steps, values = _evaluated(run, key)
    return [_line(index, run, steps, values, mode="lines+markers", **more)] if steps else []


def _accuracy(runs: Runs) -> Chart | None:
    traces = [trace for index, run in runs.items() for trace in _dotted(index, run, "accuracy")]
    if not traces:
        return None
    shares = [share for trace in traces for share in trace.y]
    room = max(0.1 * (max(shares) - min(shares)), 0.02)  # also where every evaluation found the same
    shown = [max(min(shares) - room, -0.02), min(max(shares) + room, 1.02)]
    figure = drawn(traces, axis("step"), percent_axis("accuracy (%)", range=shown))
    return Chart("accuracy", "Validation accuracy", figure, "One point an evaluation.")


def _reward(runs: Runs) -> Chart | None:
    traces = [trace for index, run in runs.items() if run.has_reward for trace in _dotted(index, run, "score")]
    if not traces:
        return None
    return Chart(
        "reward", "Validation reward", drawn(traces, axis("step"), axis("mean reward")), "One point an evaluation."
    )


def _validation_loss(runs: Runs) -> Chart | None:
    """The cross-entropy; of a single run with another objective, that too."""
    runs = {index: run for index, run in runs.items() if not run.has_reward}
    traces = [trace for index, run in runs.items() for trace in _dotted(index, run, "loss")]
    if not traces:
        return None
    more: dict[str, Any] = {}
    run = next(iter(runs.values()))
    if len(runs) == 1 and _evaluated(run, "objective")[1] not in ([], _evaluated(run, "loss")[1]):
        traces[0].update(name="cross-entropy (nats)")
        traces += _dotted(1, run, "objective", name=literal(f"objective ({run.option('objective.kind')})"))
        more = legend_above()
    title = "loss" if more else "cross-entropy (nats)"
    return Chart("validation-loss", "Validation loss", drawn(traces, axis("step"), axis(title), **more))


def slope_title(runs: Runs) -> str:
    """The title of an axis of slopes, in the unit that the runs' estimators give them."""
    units = {run.header.get("slope_unit", SLOPE_UNIT) for run in runs.values() if run.steps}
    return f"slope ({'each run in a unit of its own' if len(units) > 1 else (units or {SLOPE_UNIT}).pop()})"


def _slopes(runs: Runs) -> Chart | None:
    traces = []
    for index, run in runs.items():
        slopes = run.slopes
        steps = [record.step for record in run.steps for _ in record.slopes]
        places = kept_places(slopes)
        dots = {"color": colour(index), "size": 4, "opacity": 0.7}
        x, y = [steps[i] for i in places], [slopes[i] for i in places]
        if slopes:
            traces.append(_line(index, run, x, y, mode="markers", marker=dots))
    if not traces:
        return None
    figure = drawn(traces, axis("step"), axis(slope_title(runs)))
    thinned = any(len(run.slopes) > POINTS for run in runs.values())
    note = "One point a direction and step" + ("; of a long run, the extremes of each stretch." if thinned else ".")
    return Chart("slopes", "Slope along each direction", figure, note)


def _sizes(runs: Runs) -> Chart | None:
    """How often slopes of each size occur."""
    shown = {index: run for index, run in runs.items() if run.slopes}
    note = "; ".join(_zero_note(run, len(runs)) for run in shown.values())
    if len(runs) > 1:
        figure = _sizes_together(shown)
        return Chart("sizes", "Histogram of the sizes of slopes", figure, note) if figure else None
    for index, run in shown.items():
        bins = binned(run.slopes)
        shares = [count / len(run.slopes) for count in bins.counts]
        bars = go.Bar(x=bins.centers, y=shares, width=bins.width, marker={"color": colour(index)}, name="slopes")
        figure = drawn([bars], axis(slope_title(shown)), percent_axis("share (%)"))
        return Chart("sizes", "Histogram of the slopes", figure, note)
    return None


def _sizes_together(runs: Runs) -> str:
    """Runs can differ by orders of magnitude: their sizes are laid over each other in steps of equal ratio."""
    traces = []
    for index, run in runs.items():
        sizes, counts = binned_sizes(run.slopes)
        if sizes:
            shares = [count / len(run.slopes) for count in counts]
            traces.append(_line(index, run, sizes, shares, line={"shape": "hvh"}))
    x = log_axis("size of the slope", [size for trace in traces for size in trace.x])
    return drawn(traces, x, percent_axis("share of all slopes (%)")) if traces else ""


def _zero_note(run: ReadRun, runs: int) -> str:
    slopes = run.slopes
    share = percent(sum(slope == 0.0 for slope in slopes) / len(slopes))
    return f"{run.name}: {share} exactly zero" if runs > 1 else f"{share} of {len(slopes):,} slopes are exactly zero."


def _zeros(runs: Runs) -> Chart | None:
    """The share of zero slopes by window, where there are any."""
    traces = []
    for index, run in runs.items():
        windows = [(number_in(line, "step"), number_in(line, "zero_slope_share")) for line in run.lines("health")]
        known = [(step, share) for step, share in windows if step is not None and share is not None]
        if known:
            x, y = [step for step, _ in known], [share for _, share in known]
            traces.append(_line(index, run, x, y, mode="lines+markers"))
    if not any(share > 0 for trace in traces for share in trace.y):
        return None
    figure = drawn(traces, axis("step"), percent_axis("zero slopes (%)", range=[-0.04, 1.04]))
    return Chart(
        "zeros", "Share of slopes that are exactly zero", figure, "One point a window between two evaluations."
    )


def _eps(runs: Runs) -> Chart | None:
    """The eps of each step, where ties made it grow."""
    if not any(run.contents and run.contents.eps_changes for run in runs.values()):
        return None
    traces = []
    for index, run in runs.items():
        first = run.option("estimator.eps")
        changes = run.contents.eps_changes if run.contents else []
        points = [(0, first)] * (first is not None) + [(change.step, change.eps) for change in changes]
        if points and run.steps:
            points.append((len(run.steps), points[-1][1]))
            x, y = [step for step, _ in points], [eps for _, eps in points]
            traces.append(_line(index, run, x, y, line={"shape": "hv"}))
    tried = [eps for trace in traces for eps in trace.y]
    return Chart(
        "eps", "eps", drawn(traces, axis("step"), log_axis("eps", tried)), "Raised where too many slopes were zero."
    )

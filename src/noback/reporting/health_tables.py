"""The health of a run in tables: windows of slopes, their noise, updates, probes, and the balance of the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from noback.json_text import number_in
from noback.reporting.answers import named
from noback.reporting.blocks import Cell, Table
from noback.reporting.formats import figure, figure_in, percent, scientific, short, signed
from noback.reporting.reading import ReadRun

ROWS = 40  # of a longer table, so many rows are shown, evenly apart

# A column: its title, its key in the line, how its number is shown.
_Column = tuple[str, str, Callable[[float], str]]
_WINDOW: tuple[_Column, ...] = (
    ("up to step", "step", short), ("slopes", "slopes", short), ("zero", "zero_slope_share", percent),
    ("mean size of all", "mean_abs_slope", short), ("smallest", "min_abs_slope", short),
    ("largest", "max_abs_slope", short), ("halves agree", "agreement", "{:.2f}".format),
    ("signal / noise", "signal_to_noise", "{:.2f}".format),
)  # fmt: skip
_NOISE: tuple[_Column, ...] = (
    ("up to step", "step", short), ("directions", "directions", short), ("usual slope", "slope", short),
    ("scored twice", "repeat", percent), ("at twice the eps", "two_eps", percent),
)  # fmt: skip
_UPDATE: tuple[_Column, ...] = (
    ("step", "step", short), ("step length", "length", short), ("weight norm", "weight_norm", "{:.5g}".format),
    ("length / norm", "relative", scientific), ("weights changed", "changed_share", percent),
)  # fmt: skip
_PROBE: tuple[_Column, ...] = (
    ("step", "step", short), ("loss", "loss", "{:.4f}".format), ("curvature", "curvature", scientific),
    ("change of the loss", "change", signed), ("expected change", "expected_change", signed),
)  # fmt: skip


def health_tables(run: ReadRun) -> list[Table]:
    """Every table that has a row."""
    updates = [_with_relative(line) for line in run.lines("update")]
    found = [
        _table("Slopes by window, from one evaluation to the next", _WINDOW, run.lines("health"), "health"),
        _table("Noise of a slope: how far it differs, over a usual one", _NOISE, run.lines("slope_noise"), "noise"),
        _table("Updates: how far a step moves the weights", _UPDATE, updates, "update"),
        _table("Probes: the loss around a step", _PROBE, run.lines("probe"), "probe"),
        _balance(run),
    ]
    return [table for table in found if table.rows]


def _table(caption: str, columns: Sequence[_Column], lines: Sequence[dict[str, Any]], name: str) -> Table:
    """The columns that at least one line knows."""
    known = [column for column in columns if any(number_in(line, column[1]) is not None for line in lines)]
    shown = [lines[place] for place in _evenly(len(lines))]
    if len(shown) < len(lines):
        caption += f" ({len(shown)} of {len(lines)} rows, evenly apart)"
    rows = tuple(
        tuple(figure_in(line, key, form, f"{name}-{line.get('step')}-{key}") for _, key, form in known)
        for line in (shown if known else [])
    )
    return Table(tuple(title for title, _, _ in known), rows, caption)


def _evenly(count: int) -> list[int]:
    if count <= ROWS:
        return list(range(count))
    return [round(place * (count - 1) / (ROWS - 1)) for place in range(ROWS)]


def _with_relative(line: dict[str, Any]) -> dict[str, Any]:
    length, norm = number_in(line, "length"), number_in(line, "weight_norm")
    return {**line, "relative": length / norm} if length is not None and norm else line


def _balance(run: ReadRun) -> Table:
    """How many examples each label has in each set."""
    balance = run.last("start").get("balance")
    sets = {str(name): counts for name, counts in balance.items()} if isinstance(balance, dict) else {}
    counted = {name: counts for name, counts in sets.items() if isinstance(counts, list) and counts}
    width = max((len(counts) for counts in counted.values()), default=0)
    rows = []
    for name, counts in counted.items():
        cells = [figure(count, name=f"balance-{name}-{index}") for index, count in enumerate(counts)]
        padding = [figure(None)] * (width - len(counts))
        largest = figure(max(counts) / sum(counts) if sum(counts) else None, percent)
        rows.append((Cell(name), *cells, *padding, largest))
    labels = (named(run.labels, index) for index in range(width))
    return Table(("examples", *labels, "largest label"), tuple(rows), "Balance of the labels", first_is_head=True)

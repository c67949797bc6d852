"""The course of a run as a table: how the validation set was answered at each evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noback.json_text import number_in
from noback.reporting.blocks import Cell, Table
from noback.reporting.formats import figure_in, percent
from noback.reporting.reading import ReadRun

_ROWS = 25  # at most: a long run has hundreds of evaluations


def course_table(run: ReadRun) -> Table | None:
    """One row an evaluation; of very many, some at even distances, the first, the best and the last."""
    found = run.evaluations()
    if not found:
        return None
    best = run.contents.best() if run.contents else None
    best_step = best.step if best else None
    keys = [key for key in ("accuracy", "score", "loss") if any(number_in(line, key) is not None for line in found)]
    if all(line.get("score") == line.get("accuracy") for line in found if "accuracy" in line) and "accuracy" in keys:
        keys = [key for key in keys if key != "score"]  # the same number twice
    metric = "reward" if run.has_reward else str(run.option("metric") or run.header.get("task", {}).get("metric", ""))
    titles = {"accuracy": "accuracy", "score": metric or "score", "loss": "loss"}
    rows = tuple(_row(line, keys, best_step) for line in _some(found, best_step))
    caption = "Evaluations on the validation set" + (
        "" if len(rows) == len(found) else f", {len(rows)} of {len(found)}"
    )
    return Table(("step", *(titles[key] for key in keys)), rows, caption, first_is_head=True)


def _row(line: dict[str, Any], keys: Sequence[str], best_step: int | None) -> tuple[Cell, ...]:
    step = line.get("step")
    mark = " (best)" if best_step is not None and step == best_step else ""
    shown = {"accuracy": percent, "score": "{:.4f}".format, "loss": "{:.4f}".format}
    return (Cell(f"{step:,}{mark}", numeric=True), *(figure_in(line, key, shown[key]) for key in keys))


def _some(found: Sequence[dict[str, Any]], best_step: int | None) -> list[dict[str, Any]]:
    every = -(-len(found) // _ROWS)
    kept = {*range(0, len(found), every), len(found) - 1}
    kept |= {place for place, line in enumerate(found) if best_step is not None and line.get("step") == best_step}
    return [found[place] for place in sorted(kept)]

"""The table of a reproduction: the best lr by validation, mean (std) over seeds, beside the published figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from noback.reproduction.grid import Cell, Grid, Method, published

Found = Mapping[str, Any]  # what a cell gave


def summarised(grid: Grid, cells: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a method and number of shots, one entry a task: its accuracy over the seeds, or its gap by name."""
    rows, groups = [], tried_together(grid)
    for method in grid.methods:
        for shots in grid.shots if method.trains else grid.shots[:1]:
            entries = {task: _entry(groups, grid, cells, method, (task, shots)) for task in grid.tasks}
            rows.append({"method": method.name, "shots": shots if method.trains else 0, "tasks": entries})
    return rows


def tried_together(grid: Grid) -> dict[tuple[str, str, int, int], list[Cell]]:
    """The cells that differ in their learning rate alone, by method, task, shots and seed."""
    groups: dict[tuple[str, str, int, int], list[Cell]] = defaultdict(list)
    for cell in grid.cells:
        groups[cell.method.name, cell.task, cell.shots, cell.seed].append(cell)
    return groups


def chosen_by_validation(tried: Sequence[Cell], cells: Mapping[str, Found]) -> tuple[Cell, Found] | None:
    """Of such cells the one with the best validation score; None where none has ended."""
    known = [(cell, cells[cell.name]) for cell in tried if cell.name in cells]
    ended = [(cell, found) for cell, found in known if "gap" not in found]
    return max(ended, key=lambda pair: float(pair[1]["validation"]), default=None)


def _entry(
    groups: Mapping[tuple[str, str, int, int], Sequence[Cell]],
    grid: Grid,
    cells: Mapping[str, Mapping[str, Any]],
    method: Method,
    place: tuple[str, int],
) -> dict[str, Any]:
    """Mean and deviation in percent over the seeds that have ended; what is missing is said."""
    task, shots = place
    scores, chosen, gaps = [], [], []
    for seed in grid.seeds if method.trains else grid.seeds[:1]:
        together = groups[method.name, task, shots, seed]
        tried = [cells.get(cell.name) for cell in together]
        gaps += [str(found["gap"]) for found in tried if found is not None and "gap" in found]
        best = chosen_by_validation(together, cells)
        if best is not None:
            cell, found = best
            scores.append(100 * float(found["test"]))
            chosen.append(cell.lr)
        elif any(found is None for found in tried):
            gaps.append("not run yet")
    entry: dict[str, Any] = {"seeds": len(scores), "lrs": chosen}
    if scores:
        entry["mean"] = round(statistics.mean(scores), 2)
        entry["std"] = round(statistics.stdev(scores), 2) if len(scores) > 1 else None
    if gaps:
        entry["gap"] = gaps[0]
    known = published().get(method.name, {}).get(str(shots if method.trains else 0), {}).get(task)
    if known:
        entry["published"] = known
    return entry


def markdown(rows: Sequence[Mapping[str, Any]], grid: Grid) -> str:
    """The table as text: ours, and the published figure in brackets where there is one."""
    heads = ["method", "k", *grid.tasks]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    notes: dict[str, str] = {}
    for row in rows:
        cells = [_text(row["tasks"][task], notes) for task in grid.tasks]
        lines.append(f"| {' | '.join([row['method'], str(row['shots'] or '-'), *cells])} |")
    caption = (
        f"{grid.model}: accuracy in percent, mean (standard deviation) over seeds {', '.join(map(str, grid.seeds))}"
    )
    if any("published" in entry for row in rows for entry in row["tasks"].values()):
        caption += f"; in brackets the published figure for {published()['model']}"
        caption += " (five seeds; MeZO took 100,000 steps)"
    listed = [f"- {mark}: {text}" for text, mark in notes.items()]
    return "\n".join([f"{caption}.", "", *lines, *([""] if listed else []), *listed]) + "\n"


def _text(entry: Mapping[str, Any], notes: dict[str, str]) -> str:
    parts = []
    if "mean" in entry:
        parts.append(f"{entry['mean']:.1f}" + (f" ({entry['std']:.1f})" if entry.get("std") is not None else ""))
    if "gap" in entry:
        parts.append(notes.setdefault(entry["gap"], f"gap {len(notes) + 1}"))
    if "published" in entry:
        parts.append(f"[{entry['published'][0]:.1f}]")
    return " ".join(parts)

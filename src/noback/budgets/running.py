"""Going through a comparison of methods: the grid first, then the course of each chosen run; all of it resumable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from noback.bench.machine import machine
from noback.budgets.courses import course_of
from noback.budgets.plan import Plan
from noback.budgets.table import summarised
from noback.errors import InputError
from noback.files import is_regular, read_json, write_whole
from noback.json_text import json_text
from noback.reproduction import Cell, chosen_by_validation, reproduce, tried_together
from noback.training import Interrupted
from noback.watching import Watcher

FILE = "methods.json"


def bench_methods(
    plan: Plan, folder: Path, *, watcher: Watcher, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Run what has not ended, answer the test set along each chosen run, and write the table."""
    described = json.loads(json_text(dataclasses.asdict(plan)))
    _check(folder, described)
    cells = reproduce(plan.grid, folder / "grid", watcher=watcher, stop=stop)["cells"]
    courses, ends = {}, {}
    for key, tried in tried_together(plan.grid).items():
        best = chosen_by_validation(tried, cells)
        if best is None:
            continue
        cell, found = best
        ends[key] = {"test": found["test"], "lr": cell.lr, "forwards": found.get("forwards", 0)}
        if cell.method.baseline is None:
            if stop():
                raise Interrupted(f"stopped; nothing is lost: the same command with --out {folder} goes on")
            courses[key] = _course(cell, plan, folder, watcher)
    gaps = {name: found["gap"] for name, found in cells.items() if "gap" in found}
    table = {
        "kind": "methods", "plan": described, "machine": machine(torch.device("cpu")), "gaps": gaps,
        "rows": summarised(plan, courses, ends),
    }  # fmt: skip
    write_whole(folder / FILE, json_text(table, indent=1))
    return {"folder": str(folder), **table}


def _check(folder: Path, described: dict[str, Any]) -> None:
    """Take a new folder, or the one of this very plan."""
    place = folder / "plan.json"
    if is_regular(place):
        if read_json(place) != described:
            raise InputError(f"{str(folder)!r} holds the comparison of another plan; choose another --out")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is not empty and holds no comparison of methods; choose another --out")
    try:
        (folder / "courses").mkdir(parents=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    write_whole(place, json_text(described, indent=1))


def _course(cell: Cell, plan: Plan, folder: Path, watcher: Watcher) -> dict[str, Any]:
    """The course of a cell's run, read where it was made before."""
    place = folder / "courses" / f"{cell.name}.json"
    if not is_regular(place):
        watcher.note(f"{cell.name}: the test set along the run")
        found = course_of(folder / "grid" / "runs" / cell.name, plan, watcher)
        write_whole(place, json_text(found.table()))
    read: dict[str, Any] = read_json(place)
    return read

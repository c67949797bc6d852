"""Going through a comparison of methods: the grid first, then the course of each chosen run; all of it resumable."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from noback.bench.machine import machine
from noback.budgets.courses import course_of
from noback.budgets.plan import Key, Plan
from noback.budgets.table import summarised
from noback.distributed import refuse_ranks
from noback.engines.loading import chosen_device
from noback.errors import InputError, Interrupted
from noback.files import is_regular, read_json, write_whole
from noback.json_text import json_text
from noback.reproduction import Cell, chosen_by_validation, run_cells
from noback.watching import Watcher

FILE = "methods.json"


def bench_methods(
    plan: Plan, folder: Path, *, watcher: Watcher, stop: Callable[[], bool] = lambda: False, so_far: bool = False
) -> dict[str, Any]:
    """Run what has not ended, answer the test set along each chosen run, and write the table.

    `so_far`: run nothing; the table is of what has ended.
    """
    described = begin(plan, folder)
    cells = {} if so_far else bench_part(plan, folder, (1, 1), watcher=watcher, stop=stop)
    table = {"kind": "methods", "plan": described, **_found(plan, folder, cells)}
    write_whole(folder / FILE, json_text(table, indent=1))
    return {"folder": str(folder), **table}


def bench_part(
    plan: Plan,
    folder: Path,
    part: tuple[int, int],
    *,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Part I of N of a comparison that has begun, and what its cells gave.

    Every file has the name of its cell, so parts may run at the same time.
    """
    cells = dict[str, Any]()
    write_whole(folder / "machines" / f"{part[0]}-of-{part[1]}.json", json_text(machine(chosen_device(None))))
    for group in plan.part(*part):
        for choose in (plan.first_tried, plan.then_run):
            cells |= run_cells(
                choose(group, cells),
                folder / "grid",
                watcher=watcher,
                stop=stop,
                ended=lambda cell: _slim(cell, folder),
            )
        for tried in group.values():
            best = chosen_by_validation(tried, cells)
            if best is None or best[0].method.baseline is not None:
                continue
            if stop():
                raise Interrupted(f"stopped; nothing is lost: the same command with --out {folder} goes on")
            _answer_along(best[0], plan, folder, watcher)
    return cells


def _found(plan: Plan, folder: Path, cells: Mapping[str, Any]) -> dict[str, Any]:
    """The gaps and the rows of the table, from the files of what has ended and what cells gave that have none."""
    ended = {cell.name: folder / "grid" / "cells" / f"{cell.name}.json" for cell in plan.grid.cells}
    known = {name: read_json(place) for name, place in ended.items() if is_regular(place)} | dict(cells)
    courses, ends = dict[Key, Any](), dict[Key, Any]()
    for group in plan.part(1, 1):
        for key, tried in group.items():
            best = chosen_by_validation(tried, known)
            if best is None:
                continue
            cell, found = best
            course = _course_file(cell, folder)
            if cell.method.baseline is not None or is_regular(course):
                ends[key] = {"test": found["test"], "lr": cell.lr, "forwards": found.get("forwards", 0)}
            if is_regular(course):
                courses[key] = read_json(course)
    gaps = {name: found["gap"] for name, found in known.items() if "gap" in found}
    return {"machines": _machines(folder), "gaps": gaps, "rows": summarised(plan, courses, ends)}


def _machines(folder: Path) -> list[dict[str, Any]]:
    """What the runs were made on: each machine, version and commit once."""
    found = [read_json(place) for place in sorted((folder / "machines").glob("*.json"))]
    return [one for number, one in enumerate(found) if one not in found[:number]]


def _slim(cell: Cell, folder: Path) -> None:
    """Delete the snapshots of a run that has ended: its journal gives every step again, and there may be hundreds."""
    shutil.rmtree(folder / "grid" / "runs" / cell.name / "snapshots", ignore_errors=True)


def begin(plan: Plan, folder: Path) -> dict[str, Any]:
    """Take a new folder, or the one of this very plan; the plan as its file has it."""
    refuse_ranks("a comparison of methods is")
    described: dict[str, Any] = json.loads(json_text(dataclasses.asdict(plan)))
    _check(folder, described)
    for name in ("grid/cells", "machines"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return described


def _check(folder: Path, described: dict[str, Any]) -> None:
    """Take a new folder, or the one of this very plan."""
    place = folder / "plan.json"
    if is_regular(place):
        if _without_places(read_json(place)) != _without_places(described):
            raise InputError(f"{str(folder)!r} holds the comparison of another plan; choose another --out")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is not empty and holds no comparison of methods; choose another --out")
    try:
        (folder / "courses").mkdir(parents=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    write_whole(place, json_text(described, indent=1))


def _without_places(described: dict[str, Any]) -> dict[str, Any]:
    """A plan without where its data are, which may differ from machine to machine."""
    return {**described, "grid": {**described["grid"], "data": None}}


def _answer_along(cell: Cell, plan: Plan, folder: Path, watcher: Watcher) -> None:
    """Write the course of a cell's run, where it was not written before."""
    place = _course_file(cell, folder)
    if not is_regular(place):
        watcher.note(f"{cell.name}: the test set along the run")
        write_whole(place, json_text(course_of(folder / "grid" / "runs" / cell.name, plan, watcher).table()))


def _course_file(cell: Cell, folder: Path) -> Path:
    return folder / "courses" / f"{cell.name}.json"

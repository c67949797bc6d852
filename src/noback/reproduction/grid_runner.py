"""Going through a grid: what has ended is kept, what has begun goes on, what cannot run is a named gap."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from noback.baselines import baseline
from noback.distributed import refuse_ranks
from noback.errors import Diverged, InputError, Interrupted, InUseError, NobackError, NoNumbers
from noback.files import is_regular, read_json, write_whole
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.json_text import json_text
from noback.reproduction.grid import Cell, Grid
from noback.reproduction.table import markdown, summarised
from noback.run import Run, drawn_data, versions
from noback.training import resume, train
from noback.values import UNPERTURBED
from noback.watching import Watcher

FILE = "reproduction.json"
_STEP, _ADAM_STEP = 2.4, 3.5  # in forwards of the batch: two probes and their noise; a forward and a backward


def estimate(grid: Grid, watcher: Watcher, planned: Sequence[Cell] | None = None) -> dict[str, Any]:
    """How many forwards the grid takes, or some cells of it, and about how long here: each task's forward is timed."""
    seconds, forwards, gaps = 0.0, 0, {}
    planned = grid.cells if planned is None else planned
    for number, task in enumerate(grid.tasks, start=1):
        cells = [cell for cell in planned if cell.task == task]
        try:
            each, sizes = _example_seconds(cells[0])
        except NobackError as error:
            gaps[task] = str(error)
            continue
        for cell in cells:
            steps = cell.config.steps if cell.method.baseline in (None, "adam") else 0
            batch = min(cell.config.batch, sizes["train"])
            cost = _ADAM_STEP if cell.method.baseline == "adam" else _STEP
            evaluated = (steps // cell.config.steps_between_evaluations + 1) * sizes["validation"] + 3 * sizes["test"]
            seconds += each * (steps * batch * cost + (evaluated if steps else sum(sizes.values())))
            forwards += steps * (1 if cell.method.baseline == "adam" else cell.config.estimator.forwards)
        watcher.progress("timing a forward of each task", number, len(grid.tasks))
    return {"cells": len(planned), "forwards": forwards, "seconds": round(seconds), "gaps": gaps}


def _example_seconds(cell: Cell) -> tuple[float, dict[str, int]]:
    """Seconds of an example's forward, and the sizes of the three sets."""
    drawn = drawn_data(cell.config)
    run = Run(dataclasses.replace(cell.config, readout=None))
    run.task.use(drawn)
    batch = run.batch(0)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        run.engine.score(batch, [UNPERTURBED])
        times.append(time.perf_counter() - began)
    return min(times) / len(batch), {name: run.task.size(name) for name in ("train", "validation", "test")}


def reproduce(
    grid: Grid, folder: Path, *, watcher: Watcher, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Run every cell that has not ended, and write the table after each."""
    began = time.monotonic()
    table = _begun(grid, folder)
    run_cells(
        grid.cells,
        folder,
        watcher=watcher,
        stop=stop,
        ended=lambda _: _write(table, grid, folder),
        into=table["cells"],
    )
    _write(table, grid, folder)
    table["wall_seconds"] = round(time.monotonic() - began, 1)
    return {"folder": str(folder), **table}


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
    ended: Callable[[Cell], None] = lambda _: None,
    into: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What each of these cells gave, by name; those that have not ended are run. Each writes files of its own."""
    given: dict[str, Any] = {} if into is None else into
    for number, cell in enumerate(cells, start=1):
        place = folder / "cells" / f"{cell.name}.json"
        if is_regular(place):
            given[cell.name] = _read(place)
            continue
        watcher.note(f"{cell.name} ({number} of {len(cells)})")
        found = _finished(cell, folder, watcher, stop)
        if "gap" not in found or found.get("diverged"):  # another gap may be filled by the time the command runs again
            write_whole(place, json_text(found, indent=1))
        given[cell.name] = found
        ended(cell)
    return given


def _write(table: dict[str, Any], grid: Grid, folder: Path) -> None:
    table["seconds"] = round(sum(one.get("seconds", 0.0) for one in table["cells"].values()), 1)
    table["rows"] = summarised(grid, table["cells"])
    write_whole(folder / FILE, json_text(table, indent=1))
    write_whole(folder / "table.md", markdown(table["rows"], grid))


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} is damaged; delete it, and the same command makes it anew")
    return found


def _begun(grid: Grid, folder: Path) -> dict[str, Any]:
    """The reproduction's own file; a folder that holds another grid is refused."""
    refuse_ranks("a reproduction is")
    plan = json.loads(json_text(dataclasses.asdict(grid)))
    found = folder / FILE
    if is_regular(found):
        before = _read(found)
        if before.get("grid") != plan:
            raise InputError(f"{str(folder)!r} holds the reproduction of another grid; choose another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"folder {str(folder)!r} is not empty and holds no reproduction; choose another --out")
    try:
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    table = {"kind": "reproduction", "grid": plan, "versions": versions(), "cells": {}, "rows": []}
    if not is_regular(found):
        write_whole(found, json_text(table, indent=1))
    return table


def _finished(cell: Cell, folder: Path, watcher: Watcher, stop: Callable[[], bool]) -> dict[str, Any]:
    """What a cell gave; where it could not run, the sentence that says why."""
    try:
        if cell.method.baseline is not None:
            found = baseline(cell.config, cell.method.baseline, watcher=watcher, stop=stop)
            return {"validation": found.validation, "test": found.best, **_cost(dataclasses.asdict(found))}
        return _trained(cell, folder / "runs" / cell.name, watcher, stop)
    except Interrupted:
        raise Interrupted(f"stopped; nothing is lost: the same command with --out {folder} goes on") from None
    except InUseError:
        raise
    except (InputError, NoNumbers, Diverged) as error:
        watcher.note(f"{cell.name}: {error}")
        return {"gap": str(error), **({"diverged": True} if isinstance(error, Diverged) else {})}


def _trained(cell: Cell, path: Path, watcher: Watcher, stop: Callable[[], bool]) -> dict[str, Any]:
    begun = RunFolder(path).config.is_file()
    result = resume(path, watcher=watcher, stop=stop) if begun else train(cell.config, path, watcher=watcher, stop=stop)
    best = read_journal(RunFolder(path).journal).best()
    return {
        "validation": best.score if best else 0.0,
        "test": result.best,
        "verdict": result.verdict,
        **_cost(dataclasses.asdict(result)),
    }


def _cost(values: dict[str, Any]) -> dict[str, Any]:
    wanted = ("zero_shot", "forwards", "backwards", "seconds", "peak_memory_bytes")
    return {key: values[key] for key in wanted if key in values}

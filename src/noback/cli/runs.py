"""noback runs: the runs of a folder as a list."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from noback.cli.commands import add_json, aligned, say, watching

if TYPE_CHECKING:
    from noback.reporting.listing import Listed

HELP = "list runs: task, model, method, steps, accuracy before and after, verdict, size"
DESCRIPTION = """
List the runs of some folders, the newest last: task, model, method (adapter/estimator/rule), steps taken and planned,
test accuracy before and after (best weights), the verdict, and the size on disk. A folder that is damaged or is no run
is named below the list with a sentence. It reads only, opens no model and runs nothing that a folder names.

  noback runs                                  those in runs/
  noback runs runs/reviews-001 more/runs       one run, and all in a folder
  noback runs --json                           one JSON object, for scripts
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="*", help="a folder of runs, or a run (default: runs)", default=["runs"]
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the folders and print the list."""
    from noback.reporting.listing import list_runs

    with watching(arguments) as watcher:
        rows = list_runs(
            [Path(folder) for folder in arguments.folders],
            lambda done, total: watcher.progress("reading runs", done, total),
        )
    values = {"folders": arguments.folders, "order": "newest last", "runs": [dataclasses.asdict(row) for row in rows]}
    say(arguments, values, text(rows))


def text(rows: list[Listed]) -> str:
    """The list as people read it."""
    from noback.reporting.formats import memory

    heads = ("run", "task", "model", "method", "steps", "before", "after", "verdict", "size")
    sound = [row for row in rows if row.note is None]
    cells = [
        (
            row.run, Path(row.task or "").name, Path(row.model or "").name, row.method or "",
            f"{row.steps}/{'?' if row.planned is None else row.planned}", _score(row.before), _score(row.after),
            _verdict(row), memory(row.bytes),
        )
        for row in sound
    ]  # fmt: skip
    table = [line.rstrip() for line in aligned(heads, cells)] if cells else ["no runs there; `noback train` makes one"]
    return "\n".join([*table, *(f"{row.run}: {row.note}" for row in rows if row.note is not None)])


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _verdict(row: Listed) -> str:
    return f"{row.verdict}" if row.state == "finished" else f"{row.state}: {row.verdict}"

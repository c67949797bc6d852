"""noback reproduce: a grid of runs, and its table beside the published one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from noback.cli.commands import add_json, say, stopping, watching
from noback.errors import InputError, NobackError

HELP = "run a grid of methods, tasks, seeds and learning rates, beside the published table"
DESCRIPTION = """
Run a grid of methods x tasks x shots x seeds x learning rates from a short TOML file, and print its table beside the
published one: the best learning rate by validation, mean (standard deviation) over seeds. It first says how many
forwards that takes and about how long. A stopped or killed grid goes on with the same command; cells that have ended
are not run again. What cannot run, such as a task without data, is a named gap; where nothing
can run, the command fails.

  noback reproduce examples/table18-mini.toml --data DIR --out runs/table18-mini
  noback reproduce examples/table18.toml --data DIR --model FacebookAI/roberta-large
  noback reproduce examples/table18-mini.toml --data DIR --estimate        only say how long it would take

DIR holds one folder a task (DIR/sst2, DIR/rte, ...) with train and dev (or test) files.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("grid", metavar="GRID", help="the grid's TOML file")
    parser.add_argument("--data", metavar="DIR", help="a folder with one folder of data a task (default: the grid's)")
    parser.add_argument("--model", metavar="NAME", help="another model than the grid's")
    parser.add_argument("--out", metavar="DIR", help="the reproduction's folder (default: runs/ and the grid's name)")
    parser.add_argument("--estimate", action="store_true", help="say how many forwards and how long, and run nothing")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Estimate, run, and print the table."""
    from noback.reproduction import estimate, markdown, read_grid, reproduce

    path = Path(arguments.grid)
    grid = read_grid(path, model=arguments.model, data=arguments.data)
    folder = Path(arguments.out or Path("runs") / path.stem)
    with watching(arguments) as watcher, stopping() as stop:
        expected = estimate(grid, watcher)
        if arguments.estimate:
            say(arguments, expected, told(expected))
            _refuse_gaps(list(expected["gaps"].values()), len(grid.tasks))
            return
        watcher.note(told(expected))
        table = reproduce(grid, folder, watcher=watcher, stop=stop)
    text = markdown(table["rows"], grid)
    say(
        arguments,
        {**table, "expected": expected},
        f"{text}\nsaved in {table['folder']} ({table['seconds']:.0f} s of runs)",
    )
    gaps = [cell for cell in table["cells"].values() if "gap" in cell]
    bad_input = not any(cell.get("diverged") for cell in gaps)
    _refuse_gaps([str(cell["gap"]) for cell in gaps], len(table["cells"]), bad_input=bad_input)


def _refuse_gaps(gaps: list[str], planned: int, *, bad_input: bool = True) -> None:
    """A grid of which nothing ran is an error, with the first reason."""
    if len(gaps) == planned:
        kind = InputError if bad_input else NobackError
        raise kind(f"nothing of this grid ran; the first gap: {gaps[0]}")


def told(expected: dict[str, Any]) -> str:
    """The estimate in a sentence, and the gaps that are known beforehand."""
    sentence = (
        f"{expected['cells']} cells, {expected['forwards']:,} forwards of a batch in training, "
        f"about {expected['seconds'] / 60:.0f} minutes on this machine"
    )
    return "\n".join([sentence, *(f"  {task} will be a gap: {why}" for task, why in expected["gaps"].items())])

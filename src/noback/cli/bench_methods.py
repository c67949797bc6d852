"""noback bench methods: methods at equal forwards and at equal time, by a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from noback.cli.commands import say, stopping, watching
from noback.cli.reproduce import told
from noback.errors import InputError, shown


def run(arguments: argparse.Namespace) -> None:
    """Estimate, run, and print the table."""
    from noback.budgets import bench_methods, read_plan, text
    from noback.reproduction import estimate

    word, *files = arguments.methods
    if word != "methods" or len(files) != 1:
        given = " ".join(arguments.methods)
        raise InputError(f"bench is given {shown(given)}; expected nothing, or the word methods and one plan's file")
    path = Path(files[0])
    plan = read_plan(path, model=arguments.model, data=arguments.data)
    folder = Path(arguments.out or Path("runs") / path.stem)
    with watching(arguments) as watcher, stopping() as stop:
        expected = estimate(plan.grid, watcher)
        if arguments.estimate:
            say(arguments, expected, told(expected))
            return
        watcher.note(told(expected))
        table = bench_methods(plan, folder, watcher=watcher, stop=stop)
    say(arguments, table, f"{text(table)}\nsaved in {table['folder']}; see it with: noback report {table['folder']}")
    if len(table["gaps"]) == len(plan.grid.cells):
        raise InputError(f"nothing of this plan ran; the first gap: {next(iter(table['gaps'].values()))}")

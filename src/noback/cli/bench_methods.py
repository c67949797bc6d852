"""noback bench methods: methods at equal forwards and at equal time, by a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from noback.cli.commands import say, stopping, watching, whole_number
from noback.cli.replay import part_of
from noback.cli.reproduce import told
from noback.errors import InputError, shown


def run(arguments: argparse.Namespace) -> None:
    """Estimate, run, and print the table."""
    from noback.budgets import begin, bench_methods, bench_part, read_plan, text
    from noback.cli.jobs import MOST, run_jobs
    from noback.reproduction import estimate

    word, *files = arguments.methods
    if word != "methods" or len(files) != 1:
        given = " ".join(arguments.methods)
        raise InputError(f"bench is given {shown(given)}; expected nothing, or the word methods and one plan's file")
    path, part, jobs = Path(files[0]), part_of(arguments.part), whole_number("--jobs", arguments.jobs, MOST)
    beside = [flag for flag in ("jobs", "estimate", "so_far") if getattr(arguments, flag)]
    if part is not None and beside:
        raise InputError(f"--part and --{beside[0].replace('_', '-')} are both given; expected one of them")
    plan = read_plan(path, model=arguments.model, data=arguments.data)
    folder = Path(arguments.out or Path("runs") / path.stem)
    with watching(arguments) as watcher, stopping() as stop:
        if part is not None:
            begin(plan, folder)
            cells = bench_part(plan, folder, part, watcher=watcher, stop=stop)
            say(arguments, {"part": arguments.part, "cells": len(cells)}, f"part {arguments.part}: {len(cells)} runs")
            return
        if not arguments.so_far:
            expected = estimate(plan.grid, watcher, plan.planned)
            if arguments.estimate:
                say(arguments, expected, told(expected))
                return
            watcher.note(told(expected))
        if jobs is not None and not arguments.so_far:
            begin(plan, folder)
            run_jobs(_words(arguments, folder), jobs, folder, len(plan.planned), watcher=watcher, stop=stop)
        table = bench_methods(plan, folder, watcher=watcher, stop=stop, so_far=arguments.so_far)
    say(arguments, table, f"{text(table)}\nsaved in {table['folder']}; see it with: noback report {table['folder']}")
    if table["gaps"] and not any(row["runs"] for row in table["rows"]):
        raise InputError(f"nothing of this plan ran; the first gap: {next(iter(table['gaps'].values()))}")


def _words(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The command again, for a part of it."""
    words = ["bench", "methods", arguments.methods[1], "--out", str(folder)]
    for flag in ("model", "data"):
        value = getattr(arguments, flag)
        words += [f"--{flag}", value] if value is not None else []
    return words

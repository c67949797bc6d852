"""noback resume: go on with a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from noback.cli import compare
from noback.cli.commands import add_device, add_json, add_trust, add_watching, say, stopping, watching, whole_number
from noback.cli.train import summary
from noback.cli.workers import add_workers, working

HELP = "go on with a run that was stopped or killed"
DESCRIPTION = """
Go on with a run that was stopped (Ctrl-C) or killed, from its newest sound snapshot and the journal's tail.
It ends on the same bits as a run that was never stopped.

  noback resume runs/reviews-001
  noback resume runs/reviews-compare-001      a comparison: its runs that have not ended
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, or a comparison's")
    add_device(parser)
    add_trust(parser)
    add_workers(parser)
    add_watching(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resume and say how it went."""
    health_every = whole_number("--health-every", arguments.health_every)
    from noback.comparing import FILE, resume_comparison
    from noback.training import resume

    with working(arguments), watching(arguments) as watcher, stopping() as stop:
        if (Path(arguments.run) / FILE).is_file():
            table = resume_comparison(arguments.run, watcher=watcher, trust=arguments.trust, stop=stop)
            say(arguments, table, compare.text(table))
            return
        result = resume(
            arguments.run,
            watcher=watcher,
            device=arguments.device,
            trust=arguments.trust,
            stop=stop,
            health_every=health_every,
            divide=arguments.divide,
        )
    say(arguments, dataclasses.asdict(result), summary(result))

"""noback resume: go on with a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses

from noback.cli.commands import add_json, add_watching, health_every, say, stopping
from noback.cli.train import summary

HELP = "go on with a run that was stopped or killed"
DESCRIPTION = """
Go on with a run that was stopped (Ctrl-C) or killed, from its newest sound snapshot and the journal's tail.
It ends on the same bits as a run that was never stopped.

  noback resume runs/reviews-001
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    add_watching(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resume and say how it went."""
    from noback.cli.display import Display
    from noback.training import resume

    display = Display()
    with stopping() as stop:
        try:
            result = resume(arguments.run, watcher=display, stop=stop, health_every=health_every(arguments))
        finally:
            display.close()
    say(arguments, dataclasses.asdict(result), summary(result))

"""noback resume: go on with a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from noback.cli import compare, sweep
from noback.cli.commands import (
    add_device,
    add_json,
    add_trust,
    add_watching,
    places,
    say,
    stopping,
    watching,
    whole_number,
)
from noback.cli.train import summary
from noback.cli.workers import add_workers, shared_among, working
from noback.errors import InputError
from noback.values import MOST_STEPS

HELP = "go on with a run that was stopped or killed, or make one longer"
DESCRIPTION = """
Go on with a run that was stopped (Ctrl-C) or killed, from its newest sound snapshot and the journal's tail.
It ends on the same bits as a run that was never stopped.

  noback resume runs/reviews-001
  noback resume runs/reviews-001 --steps 500  make the run longer: 500 steps in all
  noback resume runs/reviews-compare-001      a comparison or a sweep: its runs that have not ended

With --steps a run, finished or not, takes more steps. With a constant schedule it ends on the same records and weights
as a run of so many steps from the start that is evaluated as often; only the evaluation at its old end may be one more.
With another schedule the first steps would have been others: that is refused. Given again, the same command goes on.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, or that of a comparison or a sweep")
    parser.add_argument("--steps", metavar="N", help="make the run longer, to N steps in all (default: as planned)")
    parser.add_argument("--model", metavar="NAME", help="where the base model is now, if not where it was")
    add_device(parser)
    add_trust(parser)
    add_workers(parser)
    add_watching(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resume and say how it went."""
    health_every, shared = whole_number("--health-every", arguments.health_every), shared_among(arguments)
    steps = whole_number("--steps", arguments.steps, MOST_STEPS)
    from noback import comparing, sweeping
    from noback.training import resume

    with working(arguments), watching(arguments) as watcher, stopping() as stop:
        for module, go_on, text in (
            (comparing, comparing.resume_comparison, compare.text),
            (sweeping, sweeping.resume_sweep, sweep.text),
        ):
            if (Path(arguments.run) / module.FILE).is_file():
                if steps is not None:
                    raise InputError(f"--steps is for one run, and {arguments.run!r} holds several; name one of them")
                table = go_on(arguments.run, watcher=watcher, trust=arguments.trust, stop=stop)
                say(arguments, table, text(table))
                return
        result = resume(
            arguments.run,
            steps=steps,
            watcher=watcher,
            **places(arguments),
            trust=arguments.trust,
            stop=stop,
            health_every=health_every,
            **shared,
        )
    say(arguments, dataclasses.asdict(result), summary(result))

"""noback replay: the tuned weights from the base and the journal alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from noback.cli.commands import add_json, add_run, say

HELP = "rebuild the tuned weights from the base model and the journal alone"
DESCRIPTION = """
Rebuild the tuned weights from the base model and the journal alone, bit for bit, and write them as an ordinary
Hugging Face folder. No snapshot and no data is read: the journal file by itself is enough.

  noback replay runs/reviews-001 tuned-model
  noback replay runs/reviews-001/journal tuned-model --model path/to/base
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument("target", metavar="DIR", help="the new folder")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Replay, write and say what came out."""
    write(arguments, snapshots=False)


def write(arguments: argparse.Namespace, *, snapshots: bool) -> None:
    """Bring the weights to the asked step and write them as a Hugging Face folder."""
    from noback.cli.display import Display
    from noback.tuned import check_target, export, tuned_run

    target = Path(arguments.target)
    check_target(target)
    tuned, step = tuned_run(
        arguments.run,
        arguments.at,
        model=arguments.model,
        device=arguments.device,
        snapshots=snapshots,
        watcher=Display(),
    )
    export(tuned, target, merge=getattr(arguments, "merge", False), step=step)
    digest = tuned.weights.digest()
    values = {"run": arguments.run, "folder": str(target), "step": step, "weights": digest}
    say(arguments, values, f"weights of step {step} ({digest[:12]}) in {target}")

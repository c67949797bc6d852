"""noback baseline: what other methods give on the same data and with the same evaluation."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from noback.cli.commands import add_json, say, stopping, watching

if TYPE_CHECKING:
    from noback.baselines import Baseline

HELP = "zero-shot, a linear probe, or Adam by back-propagation, on the same data"
DESCRIPTION = """
What the same data and the same evaluation give without noback's way of training, with its memory and time.

  noback baseline zero-shot
  noback baseline probe                          logistic regression on the features at the mask (needs scikit-learn)
  noback baseline adam --steps 200               fine-tuning by back-propagation; --lr is Adam's
  noback baseline adam --adapter lora

Zero-shot of a causal model's label words and choices is given calibrated too: by their scores less those that the same
answers get after a prompt that says nothing (every column N/A).
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    parser.add_argument("method", metavar="METHOD", help="zero-shot, probe or adam")
    add_config_flags(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the baseline and print what it reached."""
    from noback.baselines import baseline
    from noback.cli.flags import config_from

    config = config_from(arguments)
    with watching(arguments) as watcher, stopping() as stop:
        found = baseline(config, arguments.method, watcher=watcher, stop=stop)
    say(arguments, dataclasses.asdict(found), text(found))


def text(found: Baseline) -> str:
    """A baseline in a few lines."""
    what = f", {found.tuned:,} weights ({found.adapter})" if found.method == "adam" else ""
    calibrated = "" if found.calibrated is None else f"; calibrated {found.calibrated:.1%}"
    return (
        f"{found.task}, {found.method}{what}: test accuracy {found.best:.1%} "
        f"(zero-shot {found.zero_shot:.1%}{calibrated})\n"
        f"  {found.steps} steps, {found.forwards:,} forwards and {found.backwards:,} backwards in "
        f"{found.seconds:.0f} s; peak memory {found.peak_memory_bytes / 2**30:.2f} GiB"
    )

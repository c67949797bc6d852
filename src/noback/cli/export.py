"""noback export: a run's weights as an ordinary Hugging Face folder."""

from __future__ import annotations

import argparse

from noback.cli.commands import add_json, add_run
from noback.cli.replay import write

HELP = "write a run's weights as an ordinary Hugging Face folder"
DESCRIPTION = """
Write a run's weights and tokenizer as an ordinary Hugging Face folder, for AutoModelForMaskedLM.from_pretrained.

  noback export runs/reviews-001 tuned-model
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument("target", metavar="DIR", help="the new folder")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Export and say where."""
    write(arguments, snapshots=True)

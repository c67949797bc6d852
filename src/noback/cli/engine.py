"""noback engine: inference servers: how to start one, whether it can serve a run, a run's result on it."""

from __future__ import annotations

import argparse

from noback.cli import engine_check, engine_command, engine_load
from noback.cli.groups import sort_flags
from noback.cli.help_text import HelpText, usage_of

HELP = "inference servers: how to start one, whether it can train, a tuned adapter put onto it"
DESCRIPTION = """
Inference servers, on which `noback train --engine sglang` or `--engine vllm` tunes LoRA adapters.

  noback engine command MODEL                      the command that starts a server fit for a run
  noback engine check http://127.0.0.1:30000       whether a server can do a run's work, line by line
  noback engine load RUN http://127.0.0.1:30000 NAME        the tuned adapter, for the server's clients
"""
ACTIONS = {"command": engine_command, "check": engine_check, "load": engine_load}


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, each with its flags."""
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", required=True, help="what to do; `noback engine ACTION --help` shows how"
    )  # fmt: skip
    for name, action in ACTIONS.items():
        one = actions.add_parser(
            name, help=action.HELP, description=action.DESCRIPTION, formatter_class=HelpText
        )  # fmt: skip
        action.add(one)
        sort_flags(one)
        one.usage = usage_of(one)
        one.set_defaults(action=action)


def run(arguments: argparse.Namespace) -> None:
    """Do what was asked."""
    arguments.action.run(arguments)

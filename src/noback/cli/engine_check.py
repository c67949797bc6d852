"""noback engine check: whether an inference server can do a run's work, line by line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from noback.cli.commands import add_json, say
from noback.errors import InputError, NobackError, printable

if TYPE_CHECKING:
    from noback.config import RunConfig
    from noback.examining import Found

HELP = "examine an inference server: can it do a run's work, and what to change where it cannot"
DESCRIPTION = """
Examine an inference server line by line: its version and type, whether it takes adapters of the run's rank and on its
linears, whether an adapter moves its scores, whether it scores as the local engine does, what its rounding does to
slopes and which eps to use, how fast it is, and whether prompts that begin alike are computed alike once.

  noback engine check http://127.0.0.1:30000
  noback engine check http://127.0.0.1:8000 --set adapter.rank=16 --eps 1e-2 --json

The kind of the server is found out. It takes the options of the run that is to be trained; without them, a LoRA run on
the embedded reviews, with the model that the server serves. The exit code is 0 where every line passes, else 1.
"""
_TASK, _BATCH = "reviews-causal", "16"  # of a run of which nothing more is said


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    parser.add_argument("address", metavar="URL", help="the server's address: http://HOST:PORT")
    add_config_flags(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Examine, telling each line as it is found."""
    from noback.cli.display import Display
    from noback.examining import examine

    if getattr(arguments, "engine.url") is not None:
        raise InputError("--url is the server's address; name it once: noback engine check URL")
    found = found_at(arguments, arguments.address)
    display = Display()
    try:
        config = config_for(arguments, found)
        lines = examine(found, config, display, lambda line: None if arguments.json else print(printable(line.text())))
    finally:
        display.close()
        found.close()
    failed = [line.name for line in lines if line.passed is False]
    values = {"passed": not failed, "failed": failed, "lines": [line.table() for line in lines]}
    say(arguments, values, "every line passes" if not failed else f"{len(failed)} of {len(lines)} lines fail")
    if failed:
        raise NobackError(f"the server at {arguments.address} is not fit for this run: see {', '.join(failed)}")


def found_at(arguments: argparse.Namespace, address: str) -> Found:
    """The server at an address, of the kind that it is, or that was named."""
    from noback.cli.flags import put_flags
    from noback.config import RunConfig
    from noback.engines.servers.kinds import servers_at
    from noback.examining import find
    from noback.keywords import config_flags

    table: dict[str, Any] = {}
    flags = {flag: path for flag, path in config_flags().items() if path.startswith("engine.")}
    put_flags(table, arguments, RunConfig, flags)
    return find(servers_at(address, arguments.engine, table.get("engine")))


def config_for(arguments: argparse.Namespace, found: Found) -> RunConfig:
    """The run that the flags describe, on the server that was found."""
    from noback.cli.flags import config_from

    arguments.engine = found.server.kind
    setattr(arguments, "engine.url", found.server.url)
    usual = {"adapter": "lora", "model": found.about.model, "task": _TASK, "batch": _BATCH}
    for name, value in usual.items():
        if getattr(arguments, name) is None and arguments.config is None:
            setattr(arguments, name, value)
    return config_from(arguments)

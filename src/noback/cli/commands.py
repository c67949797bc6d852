"""What commands share: the flag --json, the flag --at, and stopping at a step's end on Ctrl-C."""

from __future__ import annotations

import argparse
import json
import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noback.errors import InputError


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: one object on stdout, everything else on stderr."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout; all else goes to stderr")


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run folder, and which of its weights."""
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its journal file alone")
    parser.add_argument(
        "--at", default="best", metavar="STEP",
        help="whose weights: best (by validation; the default), final, base, or a step's number",
    )  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="where the base model is now, if not where it was")


def add_watching(parser: argparse.ArgumentParser) -> None:
    """What is looked at while a run goes; nothing of it changes the run's bits."""
    parser.add_argument(
        "--health-every", metavar="N",
        help="every N steps, two more forwards: the curvature, and whether the step lowered the loss (default: never)",
    )  # fmt: skip


def health_every(arguments: argparse.Namespace) -> int | None:
    """The flag as a number."""
    text = arguments.health_every
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--health-every is {text!r}; expected a whole number above zero")
    return int(text)


def say(arguments: argparse.Namespace, values: dict[str, Any], text: str) -> None:
    """Print the result: JSON for scripts, text for people."""
    print(json.dumps(values) if arguments.json else text, flush=True)


@contextmanager
def stopping() -> Iterator[Any]:
    """Within, Ctrl-C and a polite kill ask the run to stop after the step in hand; a second Ctrl-C stops it at once."""
    asked = False

    def ask(_number: int, _frame: types.FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

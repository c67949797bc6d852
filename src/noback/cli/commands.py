"""What commands share: the flag --json, the flag --at, and stopping at a step's end on Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from noback.errors import InputError, printable, shown
from noback.inputs import whole_number_in
from noback.json_text import json_text
from noback.options import whole

if TYPE_CHECKING:
    from noback.watching import Watcher


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
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device, --engine and --url: where, if not where the run was."""
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N, if not where the run was")
    parser.add_argument("--engine", metavar="NAME", help="what scores, if not what the run had: local, for example")
    parser.add_argument("--url", metavar="NAME", help="where the inference server is now, if not where it was")


class Places(TypedDict):
    """Where a run's base, it and what scores are now, by keyword; none: where they were."""

    model: str | None
    device: str | None
    engine: str | None
    url: str | None


def places(arguments: argparse.Namespace) -> Places:
    """What the flags say of where things are."""
    return Places(model=arguments.model, device=arguments.device, engine=arguments.engine, url=arguments.url)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """--trust: whether code that a folder names may run."""
    parser.add_argument(
        "--trust", action="store_true",
        help="import and call the function that the run names as its objective; without it no code of a folder runs",
    )  # fmt: skip


def add_log_to(parser: argparse.ArgumentParser) -> None:
    """--log-to: where else the run's figures go."""
    parser.add_argument(
        "--log-to", metavar="NAMES",
        help="also log to tensorboard, trackio or wandb (comma-separated); all local unless told otherwise",
    )  # fmt: skip


def add_watching(parser: argparse.ArgumentParser) -> None:
    """What is measured while a run goes; nothing of it changes the run's bits."""
    add_log_to(parser)
    parser.add_argument(
        "--health-every", metavar="N",
        help="every N steps, two more forwards: whether the step lowered the loss, and, of points in pairs, the "
        "curvature (default: never)",
    )  # fmt: skip


def whole_number(flag: str, text: str | None, most: int = 2**63 - 1) -> int | None:
    """A flag's text as a whole number above zero and at most `most`; None where it was not given."""
    if text is None:
        return None
    number = whole_number_in(text)
    if not number:
        raise InputError(f"{flag} is {shown(text)}; expected a whole number above zero")
    whole(flag, number, most)
    return number


@contextmanager
def watching(arguments: argparse.Namespace) -> Iterator[Watcher]:
    """The display and the trackers of a command, closed at its end."""
    from noback.cli.display import Display
    from noback.trackers import Trackers
    from noback.watching import Several

    if not is_first():  # another rank of the run speaks
        yield Several([])
        return
    display = Display()
    trackers = Trackers(listed("--log-to", getattr(arguments, "log_to", None)), display.note)
    try:
        yield Several([display, trackers])
    finally:
        display.close()
        trackers.close()


def listed(flag: str, text: str | None) -> list[str]:
    """The words of a comma-separated list; none where it was not given."""
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if not all(words):
        raise InputError(f"{flag} is {text!r}; expected words with commas between")
    return words


def is_first() -> bool:
    """Whether this process speaks for a run that several ranks make."""
    return os.environ.get("RANK", "0") == "0"


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for first, *others in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines


def say(arguments: argparse.Namespace, values: dict[str, Any], text: str) -> None:
    """Print the result: JSON for scripts, text for people; of the ranks of a run, the first."""
    if is_first():
        print(json_text(values) if arguments.json else printable(text), flush=True)


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

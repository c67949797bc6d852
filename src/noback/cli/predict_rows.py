"""noback predict --data: the rows of a file, or of stdin, written with their answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from noback.cli.commands import places, say
from noback.errors import InputError, printable, shown

if TYPE_CHECKING:
    from noback.predictions import Predicted, Source, Target
    from noback.run import Run

STREAM = "-"
FORMATS = ("csv", "tsv", "jsonl")


def answer_rows(arguments: argparse.Namespace) -> None:
    """Answer the rows that --data names, and say how many."""
    from noback.cli.display import Display
    from noback.predictions import predict_rows
    from noback.tuned import tuned_run

    _check_flags(arguments)
    source = _source(arguments)
    target = _target(arguments)
    display = Display()
    try:
        tuned, step = tuned_run(arguments.run, arguments.at, **places(arguments), watcher=display)
        done = predict_rows(tuned, source, target, columns=arguments.columns, prefix=arguments.prefix or "")
    finally:
        display.close()
    text = _told(tuned, done, arguments.out)
    if target.whole:
        values = {"run": arguments.run, "step": step, "data": arguments.data, "out": arguments.out, "rows": done.rows}
        say(arguments, {**values, "shortened": done.shortened, "labels": dict(done.labels)}, text)
    else:
        display.note(text)


def _check_flags(arguments: argparse.Namespace) -> None:
    arguments.out = STREAM if arguments.out is None else arguments.out
    if arguments.texts:
        raise InputError(f"{shown(arguments.texts[0])} and --data were given; expected texts or a file, not both")
    for flag, stream, meant in (
        ("stdin_format", arguments.data, "--data -"),
        ("stdout_format", arguments.out, "--out -"),
    ):
        value, name = getattr(arguments, flag), f"--{flag.replace('_', '-')}"
        if value is not None and stream != STREAM:
            raise InputError(f"{name} goes with {meant}; a file's ending says what it is")
        if value is not None and value not in FORMATS:
            raise InputError(f"{name} is {shown(value)}; expected {', '.join(FORMATS)}")
    if arguments.json and arguments.out == STREAM:
        raise InputError("--json and the rows would both go to stdout; name a file: --out FILE")
    if arguments.overwrite and arguments.out == STREAM:
        raise InputError("--overwrite goes with --out FILE")


def _source(arguments: argparse.Namespace) -> Source:
    """Where rows come from; a file that cannot be read is refused before a model is opened."""
    from noback.predictions import file_source, stdin_source
    from noback.tasks import check_data

    if arguments.data == STREAM:
        return stdin_source(sys.stdin.buffer, arguments.stdin_format and f".{arguments.stdin_format}")
    if arguments.data.startswith("hf:"):
        raise InputError(
            f"--data is {shown(arguments.data)}; expected a file: a dataset is answered from Python, "
            "noback.predict(RUN, dataset)"
        )
    path = Path(arguments.data)
    check_data(path)
    return file_source(path)


def _target(arguments: argparse.Namespace) -> Target:
    """Where answers go, and in which form."""
    from noback.predictions import Target, check_place, opened
    from noback.tasks import ending_of

    if arguments.out != STREAM:
        out = Path(arguments.out)
        return Target(lambda: opened(out), check_place(out, overwrite=arguments.overwrite), whole=True)
    read = f".{arguments.stdin_format or FORMATS[0]}" if arguments.data == STREAM else ending_of(Path(arguments.data))
    written = f".{arguments.stdout_format}" if arguments.stdout_format else read
    seen = printable if sys.stdout.isatty() else str
    return Target(_stdout, written or "", whole=False, seen=seen)


class _Flushed:
    """stdout, each row of which is seen at once."""

    def write(self, data: bytes, /) -> None:
        """Write and flush."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def _stdout() -> Iterator[_Flushed]:
    sys.stdout.flush()
    yield _Flushed()


def _told(tuned: Run, done: Predicted, out: str) -> str:
    """What was done, in one or two lines."""
    given = ", ".join(f"{label}: {done.labels[label]:,}" for label in tuned.task.spec.labels)
    where = "" if out == STREAM else f"; written to {out}"
    lines = [f"{done.rows:,} rows answered{f' ({given})' if given else ''}{where}"]
    if done.shortened:
        lines.append(f"{done.shortened:,} prompts were shortened to fit")
    return "\n".join(lines)

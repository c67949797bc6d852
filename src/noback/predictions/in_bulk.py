"""A whole file, or stdin, answered row by row; a file is read through before the first row is answered."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from noback.errors import InputError, shown
from noback.predictions.answering import Answer, answered
from noback.predictions.asking import Asked, asked_rows, asking
from noback.predictions.writing import AnswerWriter, Sink, new_columns
from noback.run import Run
from noback.tasks import Row, TaskSpec, rows_from, stream_rows


class Source(NamedTuple):
    """Where rows come from."""

    what: str
    rows: Callable[[], Iterator[Row]]  # from the first on
    total: bool  # whether they can be read twice, and so be checked and counted first


def file_source(path: Path) -> Source:
    """The rows of a data file."""
    return Source(f"data file {shown(str(path))}", lambda: stream_rows(path), total=True)


def stdin_source(stdin: BinaryIO, ending: str | None) -> Source:
    """The rows of stdin; where nobody says how it is read, sentences about it say how to."""
    what = (
        f"stdin (read as {ending.removeprefix('.')})"
        if ending
        else "stdin (read as csv; --stdin-format says otherwise)"
    )
    ending = ending or ".csv"
    return Source(what, lambda: rows_from(stdin, ending, what), total=False)


class Target(NamedTuple):
    """Where answers go."""

    sink: Callable[[], AbstractContextManager[Sink]]
    ending: str
    whole: bool  # whether all of it comes to be at the end, or rows as they are answered
    seen: Callable[[str], str] = str  # what becomes of the text before it is written, for a terminal


@dataclass(slots=True)
class Predicted:
    """What became of the rows so far."""

    rows: int = 0
    shortened: int = 0  # rows whose prompt was too long for the model
    labels: Counter[str] = field(default_factory=Counter)  # how often each label was given

    def add(self, answer: Answer, spec: TaskSpec) -> None:
        """Count an answer; choices and texts are as many as rows, so they are not kept."""
        self.rows += 1
        self.shortened += answer.shortened
        if spec.answer == "words":
            self.labels[answer.text] += 1


def predict_rows(
    run: Run, source: Source, target: Target, *, columns: str | None = None, prefix: str = ""
) -> Predicted:
    """Answer every row of a source with the run's weights as they stand, and write it with its answer."""
    spec, done = asking(run.task.spec, columns), Predicted()
    if target.ending == ".tsv" and spec.answer == "text":
        raise InputError(
            "answers that are written may hold tabs and line breaks, which .tsv cannot: use .csv or .jsonl"
        )
    try:
        total = _rehearse(run, source, target, spec, prefix) if source.total else 0
        at_once = None if source.total else run.config.batch
        with target.sink() as sink:
            writer = AnswerWriter(sink, target.ending, target.seen)
            for one, answer in answered(run, _asked(source, spec), at_once=at_once):
                writer.write(one.place, one.row, new_columns(spec, answer, prefix))
                done.add(answer, spec)
                run.watcher.progress("answering rows", done.rows, total)
            if not done.rows:
                raise InputError(f"{source.what} holds no rows")
    except InputError as error:
        raise InputError(f"{error} ({_left(done, target)})") from None
    except KeyboardInterrupt:
        run.watcher.note(f"stopped after {done.rows:,} rows; {_left(done, target)}")
        raise
    return done


def _left(done: Predicted, target: Target) -> str:
    """What is there where the work ended early."""
    return "nothing was written" if target.whole or not done.rows else f"{done.rows:,} rows were written before"


def _asked(source: Source, spec: TaskSpec) -> Iterator[Asked]:
    return asked_rows(source.rows(), spec, source.what)


def _rehearse(run: Run, source: Source, target: Target, spec: TaskSpec, prefix: str) -> int:
    """Read and write every row without its answer, to nowhere: a bad one is found before any time is spent."""
    blank, count = new_columns(spec, Answer("", spec.labels, (0.0,) * len(spec.labels)), prefix), 0
    with open(os.devnull, "wb") as nowhere:
        writer = AnswerWriter(nowhere, target.ending)
        for one in _asked(source, spec):
            writer.write(one.place, one.row, blank)
            count += 1
            run.watcher.progress("checking rows", count, 0)
    return count

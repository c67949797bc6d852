"""Files of answers: the rows of the input with new columns, as CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from noback.errors import InputError, shown
from noback.files import whole_file
from noback.json_text import json_text
from noback.predictions.answering import Answer
from noback.tasks import ENDINGS, TaskSpec, ending_of


class Sink(Protocol):
    """Takes bytes: a file, or stdout."""

    def write(self, data: bytes, /) -> object:
        """Take some."""


def check_place(out: Path, *, overwrite: bool) -> str:
    """The ending by which answers are written to a file; one that exists, or that nothing can write to, is refused."""
    ending = ending_of(out)
    if ending is None:
        raise InputError(f"--out is {shown(str(out))}; expected a file that ends in {', '.join(ENDINGS)}, plain or .gz")
    if not out.parent.is_dir():
        raise InputError(f"--out is {shown(str(out))}; expected a file in a folder that exists")
    if out.is_dir():
        raise InputError(f"--out is {shown(str(out))}, which is a folder; expected a file")
    if not overwrite and (out.exists() or out.is_symlink()):
        raise InputError(f"{shown(str(out))} exists; choose another --out, or say --overwrite")
    return ending


@contextmanager
def opened(out: Path) -> Iterator[Sink]:
    """A file to write to, packed where its name ends in .gz; it has its name when all is written, or not at all."""
    with whole_file(out) as file:
        if out.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                yield packed
        else:
            yield file


def new_columns(spec: TaskSpec, answer: Answer, prefix: str) -> dict[str, Any]:
    """What an answer adds to its row: the same columns for every row of a task."""
    added: dict[str, Any] = {"prediction": answer.text}
    if spec.answer == "words":
        added |= {
            f"probability_{name}": _short(chance) for name, chance in zip(spec.labels, answer.chances, strict=True)
        }
    if spec.answer == "choices":
        added |= {"prediction_index": answer.number, "probabilities": [_short(chance) for chance in answer.chances]}
    return {prefix + name: value for name, value in added.items()}


def _short(chance: float) -> float:
    """The digits that do not depend on the rows beside."""
    return float(f"{chance:.6g}")


class AnswerWriter:
    """Writes rows as they come; a table's columns are those of the first row."""

    def __init__(self, sink: Sink, ending: str, seen: Callable[[str], str] = str) -> None:
        """`seen`: what becomes of the text before it is written, for a terminal."""
        self._sink, self._ending, self._seen = sink, ending, seen
        self._columns: Sequence[str] = ()

    def write(self, place: str, row: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Write a row and what its answer adds; a row that the form cannot hold is refused by its place."""
        for name in added:
            if name in row:
                raise InputError(
                    f"{place} has a column {shown(name)} already; expected no column of the answers' names: "
                    "give those a beginning of their own with --prefix NAME"
                )
        whole = {**row, **added}
        text = json_text(whole) + "\n" if self._ending == ".jsonl" else self._lines(place, whole)
        try:
            data = self._seen(text).encode()
        except UnicodeEncodeError:
            raise InputError(f"{place} holds text that is no UTF-8; write .jsonl, which can hold it") from None
        self._sink.write(data)

    def _lines(self, place: str, row: Mapping[str, Any]) -> str:
        """The row's line, and before the first the columns' names."""
        first = not self._columns
        if first:
            self._columns = tuple(row)
        elif more := [name for name in row if name not in self._columns]:
            raise InputError(
                f"{place} has a column {shown(more[0])} that the first row has not; a table needs the same columns in "
                "each row: write .jsonl"
            )
        cells = [_cell(row.get(name)) for name in self._columns]
        made = _comma_line if self._ending == ".csv" else _tab_line
        return (made(place, self._columns, self._columns) if first else "") + made(place, cells, self._columns)


def _cell(value: Any) -> str:
    """A value as a table holds it: nothing for none, lists and objects as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def _comma_line(_place: str, cells: Sequence[str], _columns: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _tab_line(place: str, cells: Sequence[str], columns: Sequence[str]) -> str:
    for name, cell in zip(columns, cells, strict=True):
        if any(mark in cell for mark in "\t\r\n"):
            raise InputError(
                f"{place} has a tab or a line break in column {shown(name)}, which .tsv cannot hold: "
                "write .csv or .jsonl"
            )
    return "\t".join(cells) + "\n"

"""Rows that are read as they come, from a file or from stdin: what is held is one row, however long the data is."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from noback.errors import InputError, shown
from noback.inputs import open_given
from noback.tasks.rows import ENDINGS, LONGEST, Row, ending_of, rows_in

_LONGEST_LINE = LONGEST  # bytes
_LONGEST_ROW = 4 * LONGEST  # characters: a quoted field of a CSV file may go over many lines
_ENDED_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def stream_rows(path: Path) -> Iterator[Row]:
    """The rows of a data file, each with its line, the file closed behind the last."""
    ending = check_data(path)
    with open_given(path, "data file") as file, _unpacked(file, path) as plain:
        yield from rows_from(plain, ending, f"data file {shown(str(path))}")


def check_data(path: Path) -> str:
    """The ending that says how a data file is read; what is no data file is refused, and none of it is read."""
    open_given(path, "data file").close()
    ending = ending_of(path)
    if ending is None:
        raise InputError(
            f"data file {shown(str(path))} has an unknown ending; expected {', '.join(ENDINGS)}, plain or .gz"
        )
    return ending


def _unpacked(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    """A file's bytes, unpacked on the way where its name says so."""
    return cast(BinaryIO, gzip.open(file)) if path.name.endswith(".gz") else nullcontext(file)


def is_data_file(text: str) -> bool:
    """Whether a text is a data file's name: it ends as one does, and is one word or the path of a file."""
    if ending_of(Path(text)) is None:
        return False
    try:
        return len(text.split()) == 1 or Path(text).is_file()
    except (OSError, ValueError):  # no file can have that name
        return False


def rows_from(file: BinaryIO, ending: str, what: str) -> Iterator[Row]:
    """The rows of an open file or of stdin, read as a file of that ending is."""
    lines = lines_of(file, what)
    if ending == ".jsonl":
        yield from rows_in(lines, ending, what)
        return
    bounded = _Bounded(lines, what)
    for row in rows_in(bounded, ending, what, whole=True):
        bounded.begin()
        yield row


def lines_of(file: BinaryIO, what: str) -> Iterator[str]:
    """The lines of an open file with their ends; one that is very long or no UTF-8 is refused by its number."""
    number = 0
    while raw := _read_line(file, what):
        number += 1
        if len(raw) > _LONGEST_LINE:
            raise InputError(f"line {number} of {what} is longer than {_LONGEST_LINE:,} bytes; expected shorter lines")
        try:
            yield (raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"line {number} of {what} is no UTF-8: {error.reason} at byte {error.start + 1}") from None


def _read_line(file: BinaryIO, what: str) -> bytes:
    try:
        return file.readline(_LONGEST_LINE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{what} cannot be read: {error}") from None


class _Bounded:
    """The lines of a table, also where a lone carriage return ends them; a row of very many lines is refused."""

    def __init__(self, lines: Iterator[str], what: str) -> None:
        self._lines: Iterator[str] = (part for line in lines for part in _ENDED_LINE.findall(line))
        self._what, self._taken, self._number = what, 0, 0

    def begin(self) -> None:
        """A new row begins."""
        self._taken = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._number += 1
        self._taken += len(line)
        if self._taken > _LONGEST_ROW:
            raise InputError(
                f"the row that goes over line {self._number} of {self._what} is longer than {_LONGEST_ROW:,} "
                "characters; is a quote not closed?"
            )
        return line

"""The rows of a data file: CSV, TSV or JSON lines, plain or gzipped; a row that is not whole is refused by its line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noback.errors import InputError, shown
from noback.inputs import json_value, read_given

ENDINGS = (".csv", ".tsv", ".jsonl")
LONGEST = 2**24  # characters of a field of a CSV or TSV file

Row = tuple[int, Mapping[str, Any]]  # its line, and the value of each column


def ending_of(path: Path) -> str | None:
    """The ending that says how a file is read; None where it has none of those."""
    name = path.name.removesuffix(".gz")
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, each with its line."""
    what = f"data file {shown(str(path))}"
    raw = read_given(path, "data file")
    try:
        text = (gzip.decompress(raw) if path.name.endswith(".gz") else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{what} cannot be read: {error}") from None
    ending = ending_of(path)
    return rows_in(text.split("\n") if ending == ".jsonl" else io.StringIO(text, newline=""), ending, what)


def rows_in(lines: Iterable[str], ending: str | None, what: str, *, whole: bool = False) -> Iterator[Row]:
    """The rows that some lines hold, read as a file of that ending is; they are asked for one by one.

    `whole`: each column is needed, so two without a name are refused; otherwise the last of them is kept.
    """
    if ending == ".jsonl":
        return _json_rows(lines, what)
    return _table_rows(lines, what, tabs=ending == ".tsv", whole=whole)


def _json_rows(lines: Iterable[str], what: str) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json_value(line)
        except ValueError as error:
            raise InputError(f"line {number} of {what} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {what} is no JSON object with named columns")
        yield number, row


def _table_rows(lines: Iterable[str], what: str, *, tabs: bool, whole: bool) -> Iterator[Row]:
    rows = _fields(lines, what, tabs=tabs)
    _, header = next(rows, (0, list[str]()))
    _check_header(header, what, whole=whole)
    for number, fields in rows:
        if len(fields) != len(header):
            raise InputError(
                f"line {number} of {what} has {len(fields)} field{'s' * (len(fields) != 1)}; expected {len(header)}, "
                f"one for each column of its first line: {_HINTS[tabs]}"
            )
        yield number, dict(zip(header, fields, strict=True))


def _fields(lines: Iterable[str], what: str, *, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not empty, with the line that they end on."""
    reader = csv.reader(lines, delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)
    while True:
        try:
            with _long_fields():
                fields = next(reader, None)
        except csv.Error as error:
            bound = f" (at most {LONGEST:,} characters are read)" if "limit" in str(error) else ""
            raise InputError(f"line {reader.line_num} of {what} is damaged: {error}{bound}") from None
        if fields is None:
            return
        if fields:
            yield reader.line_num, fields


@contextmanager
def _long_fields() -> Iterator[None]:
    """Within, fields may be long; the limit is the whole process's, so it is put back."""
    before = csv.field_size_limit(LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _check_header(header: Sequence[str], what: str, *, whole: bool) -> None:
    """Refuse a name that stands twice; empty names may where not all are needed, since no task can ask for them."""
    for name, count in Counter(header).items():
        if (name or whole) and count > 1:
            raise InputError(f"the first line of {what} names the column {shown(name)} twice; expected each name once")


_HINTS = {
    False: "put quotes around a field that holds a comma, a quote or a line break",
    True: "a tab parts fields and nothing is quoted",
}

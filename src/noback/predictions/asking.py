"""What is asked: texts, rows of named columns, datasets and tables become examples without a label, one by one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from noback.errors import InputError, shown
from noback.tasks import Example, Row, Task, TaskSpec, is_data_file, stream_rows, unlabelled, with_columns

_NO_LABEL = "(no label)"  # stands where --columns names none


class Asked(NamedTuple):
    """An example to be answered, where it stands in its source, and the row it is of."""

    place: str
    example: Example
    row: Mapping[str, Any]


def asking(spec: TaskSpec, columns: str | None) -> TaskSpec:
    """The specification for data to be answered, whose columns may have other names; the label's may be left out."""
    if columns is None:
        return spec
    unnamed = spec.label and columns.count(",") + 1 == len(spec.columns) - 1
    return with_columns(spec, f"{columns},{_NO_LABEL}" if unnamed else columns)


def asked_rows(rows: Iterable[Row], spec: TaskSpec, what: str) -> Iterator[Asked]:
    """The rows of a file or of stdin."""
    for line, row in rows:
        place = f"line {line} of {what}"
        yield Asked(place, unlabelled(row, spec, what, place), row)


def asked_texts(task: Task, texts: Iterable[str]) -> Iterator[Asked]:
    """Texts as a command line gives them: the sentences of one, and its choices after them, are parted by a tab."""
    several = len(task.spec.sentences) > 1 or task.spec.answer == "choices"
    for number, text in enumerate(texts, start=1):
        yield Asked(f"text {number}", task.unlabelled(text.split("\t") if several else text), {"text": text})


def asked_data(task: Task, data: Any, columns: str | None) -> Iterator[Asked]:
    """Whatever Python gives: one text, or several; one row, or several; a dataset, a data frame, a data file's path."""
    spec = asking(task.spec, columns)
    if isinstance(data, os.PathLike):
        path = Path(data)
        yield from asked_rows(stream_rows(path), spec, f"data file {shown(str(path))}")
        return
    if isinstance(data, str) and is_data_file(data):
        raise InputError(f"{shown(data)} is a data file's name; give its path, pathlib.Path({shown(data)})")
    for number, item in enumerate(_items(data), start=1):
        place = f"row {number}"
        if isinstance(item, Mapping):
            row = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in item.items()}
            yield Asked(place, unlabelled(row, spec, "the data", place), row)
        elif isinstance(item, str) or (isinstance(item, (list, tuple)) and all(isinstance(one, str) for one in item)):
            yield Asked(place, task.unlabelled(item), {})
        else:
            raise InputError(
                f"{place} is {shown(item)}; expected a text, a tuple of sentences, or a mapping with the columns "
                f"{', '.join((*spec.sentences, *spec.choices))}"
            )


def _items(data: Any) -> Iterator[Any]:
    """The texts or rows of some data, in their order."""
    if isinstance(data, (str, Mapping)):
        return iter([data])
    if hasattr(data, "itertuples") and hasattr(data, "columns"):  # a pandas data frame; its own iterator gives names
        names = list(data.columns)
        return (dict(zip(names, values, strict=True)) for values in data.itertuples(index=False, name=None))
    if not isinstance(data, Iterable):
        raise InputError(
            f"the data is {shown(data)}; expected a text, a list of texts or of rows, a dataset, a data frame, or the "
            "path of a data file"
        )
    return iter(data)

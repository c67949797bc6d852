"""Rows in memory as data files: a list of rows, a data frame, a dataset, or a dictionary of splits of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from noback.errors import InputError, shown
from noback.json_text import json_text
from noback.tasks.data import SPLITS, WHOLE, named_labels
from noback.tasks.spec import TaskSpec

_EXPECTED = (
    "a list of rows (each a dict), a data frame, a dataset, or a dict of train, validation and test with one each"
)
_MISSING = ("NAType", "NaTType")  # how pandas says that there is no value


def data_files(data: Any, spec: TaskSpec) -> dict[str, bytes]:
    """The JSON lines of each split by the name of its file; rows without splits are one file, `whole`."""
    if not isinstance(data, Mapping):
        return {f"{WHOLE}.jsonl": _lines(data, "data", spec)}
    found: dict[str, bytes] = {}
    for key, table in data.items():
        # `validation_matched` is a validation; others, such as `unsupervised`, are left out.
        split = SPLITS.get(str(key).split("_")[0].lower())
        if split is not None and f"{split}.jsonl" not in found:
            found[f"{split}.jsonl"] = _lines(table, f"data[{key!r}]", spec)
    if not found:
        raise InputError(f"data is a dict of {shown(', '.join(map(str, data)))}; expected {_EXPECTED}")
    return found


def _lines(table: Any, where: str, spec: TaskSpec) -> bytes:
    lines = []
    for number, row in enumerate(_rows(table, where, spec), start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} of {where} is {shown(row)}; expected a dict with a value for each column")
        lines.append(json_text({str(key): _plain(value) for key, value in row.items()}) + "\n")
    return "".join(lines).encode()


def _rows(table: Any, where: str, spec: TaskSpec) -> Iterable[Any]:
    """The rows of a table, whichever library made it."""
    if hasattr(table, "features") and hasattr(table, "column_names"):  # a dataset; -1 stands for no gold label
        return [row for row in named_labels(table, spec) if row.get(spec.label) != -1]
    if hasattr(table, "columns") and hasattr(table, "to_dict"):  # a data frame
        records: Iterable[Any] = table.to_dict(orient="records")
        return records
    if isinstance(table, str | bytes) or not isinstance(table, Iterable):
        raise InputError(f"{where} is {shown(table)}; expected {_EXPECTED}")
    return table


def _plain(value: Any) -> Any:
    """A value as JSON has it; a number that is none, or a frame's missing value, is null."""
    if value is None or isinstance(value, str | int) or type(value).__name__ in _MISSING:
        return None if type(value).__name__ in _MISSING else value
    if isinstance(value, float):
        return value if value == value else None  # noqa: PLR0124 (nan)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # an array, or a number of one
        return _plain(value.tolist())
    return str(value)

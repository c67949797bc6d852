"""Where examples come from: files with named columns, a folder of split files, or a Hugging Face dataset."""

from __future__ import annotations

import math
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.errors import InputError, shown
from noback.inputs import check_text, whole_number_in
from noback.options import suggestion
from noback.tasks.one_line import UNKNOWN, listed
from noback.tasks.rows import ENDINGS, Row, ending_of, read_rows
from noback.tasks.spec import TaskSpec

SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "val": "validation", "test": "test"}
_EXPECTED = f"{', '.join(ENDINGS)}, plain or .gz"
_HUB = "hf:"
_NAMED = 8  # of files that are not used, so many are named
_MOST_LABELS, _LONGEST = 32, 1000  # labels that a sentence names, and their characters
WHOLE = "whole"  # a file that is not one of several splits


@dataclass(frozen=True, slots=True)
class Example:
    """An example's sentences and the index of its label or of its right choice."""

    sentences: tuple[str, ...]
    gold: int
    choices: tuple[str, ...] = ()  # where each row brings its own
    right: tuple[int, ...] = ()  # every right choice, where several are
    accepted: tuple[str, ...] = ()  # the right texts, where the answer is written; the first one is learned


Splits = dict[str, list[Example]]


def read_data(source: str, spec: TaskSpec) -> Splits:
    """The labelled splits of a source: train, validation and test, or `whole` for a file by itself."""
    if source.startswith(_HUB):
        return {name: _examples(rows, f"{source} {name}", spec) for name, rows in _hub_splits(source, spec).items()}
    path = Path(source)
    if _is_folder(path):
        files = _split_files(path)
    elif ending_of(path):
        files = {WHOLE: path}
    else:
        raise InputError(f"data file {shown(source)} has an unknown ending; expected {_EXPECTED}")
    return {split: _examples(read_rows(file), str(file), spec) for split, file in files.items()}


def unused_files(source: str) -> list[str]:
    """What there is to say of files in a folder that look like data and are not read."""
    path = Path(source)
    if source.startswith(_HUB) or not path.is_dir():
        return []
    used = {file.name for file in _split_files(path).values()}
    beside = sorted(file.name for file in _entries(path) if ending_of(file) or _split_of(file))
    names = [name for name in beside if name not in used]
    if not names:
        return []
    count = "1 file" if len(names) == 1 else f"{len(names)} files"
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return [
        f"{count} of folder {str(path)!r} not used: {listed} (used: {', '.join(sorted(used))}); a split is a file "
        f"called train, dev (or validation, val) or test, ending in {_EXPECTED}: rename a file to use it as a split, "
        "or give it by itself with --data FILE"
    ]


def _split_of(path: Path) -> str | None:
    """Which split a file is, by its name."""
    return SPLITS.get(path.name.split(".")[0].lower())


def rows_to_look_at(source: str) -> list[Mapping[str, Any]]:
    """The rows of a file, or of a folder's train file, as they are; a dataset of the hub is not looked at."""
    if source.startswith(_HUB):
        raise InputError(f"data {shown(source)} is a dataset of the hub; expected a file, or a folder of split files")
    path = Path(source)
    if _is_folder(path):
        files = _split_files(path)
        path = files.get("train") or next(iter(files.values()))
    elif not ending_of(path):
        raise InputError(f"data file {shown(source)} has an unknown ending; expected {_EXPECTED}")
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise InputError(f"{str(path)!r} holds no examples")
    return rows


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder; one that does not exist is refused."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        why = "does not exist"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except ValueError:  # a NUL character, or no UTF-8
        why = "cannot exist"
    raise InputError(
        f"data {shown(str(path))} {why}; expected a file ({_EXPECTED}), a folder of split files, "
        "or hf:NAME for a Hugging Face dataset"
    )


def _split_files(folder: Path) -> dict[str, Path]:
    files = sorted(path for path in _entries(folder) if ending_of(path))
    found: dict[str, Path] = {}
    for path in files:
        split = _split_of(path)
        if split in found:
            raise InputError(f"folder {str(folder)!r} has two files for {split}: {found[split].name} and {path.name}")
        if split:
            found[split] = path
    if not found and len(files) == 1:
        return {WHOLE: files[0]}
    if not found:
        raise InputError(
            f"folder {str(folder)!r} has no split file; expected train, dev (or validation) and test, "
            f"ending in {_EXPECTED}" + (f"; it has {', '.join(file.name for file in files[:_NAMED])}" if files else "")
        )
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be read: {error.strerror}") from None


class _UnknownLabel(Exception):
    """A row's label has no label word."""


def _examples(rows: Iterable[Row], where: str, spec: TaskSpec) -> list[Example]:
    examples: list[Example] = []
    rows = iter(rows)
    for line, row in rows:
        place = f"line {line} of {where!r}"
        sentences = _sentences(row, spec, spec.columns, repr(where), place)
        try:
            examples.append(_ANSWERED[spec.answer](row, sentences, spec, place))
        except _UnknownLabel as unknown:
            before = [spec.labels[example.gold] for example in examples]
            labels = {*before, str(unknown), *_labels_in(rows, spec)}
            raise InputError(
                f"{place} has the label {shown(str(unknown))}, which is not in task {spec.name!r} "
                f"(its labels: {', '.join(spec.labels)}); {_how_to_name(labels, spec)}"
            ) from None
    if not examples:
        raise InputError(f"{where!r} holds no examples")
    return examples


def unlabelled(row: Mapping[str, Any], spec: TaskSpec, where: str, place: str) -> Example:
    """A row that is to be answered: its sentences and choices. It needs no label; one that it has is not looked at."""
    sentences = _sentences(row, spec, (*spec.sentences, *spec.choices), where, place)
    return Example(sentences, 0, _choices(row, spec, place) if spec.answer == "choices" else ())


def _sentences(
    row: Mapping[str, Any], spec: TaskSpec, needed: Sequence[str], where: str, place: str
) -> tuple[str, ...]:
    """The sentences of a row that has a value in each of the columns needed."""
    for column in needed:
        value = value_at(row, column)
        if value is None or (isinstance(value, float) and math.isnan(value)):  # a missing number of a dataset
            raise InputError(_missing(column, row, where, place))
    return tuple(_text(value_at(row, column), column, place) for column in spec.sentences)


def _labelled(row: Mapping[str, Any], sentences: tuple[str, ...], spec: TaskSpec, where: str) -> Example:
    value = _text(value_at(row, spec.label), spec.label, where)
    label = next((form for form in _label_forms(value) if form in spec.labels), None)
    if label is None:
        raise _UnknownLabel(value.strip())
    return Example(sentences, spec.labels.index(label))


def _labels_in(rows: Iterable[Row], spec: TaskSpec) -> Iterator[str]:
    """The labels of the rows that can be read."""
    try:
        for _, row in rows:
            value = value_at(row, spec.label)
            if isinstance(value, (str, int, float)):
                yield next((form for form in _label_forms(value) if form in spec.labels), str(value).strip())
    except InputError:
        return


def numbers_first(labels: Iterable[str]) -> list[str]:
    """Labels in the order that people expect: 2 before 10, and names after numbers."""
    return sorted(labels, key=lambda label: (whole_number_in(label) is None, whole_number_in(label) or 0, label))


def _how_to_name(labels: Collection[str], spec: TaskSpec) -> str:
    """What to do where labels of the data have no word."""
    text = listed({label: spec.words.get(label, UNKNOWN) for label in numbers_first(labels) if label})
    if len(labels) > _MOST_LABELS or len(text) > _LONGEST:
        return (
            f"its column {spec.label!r} holds {len(labels):,} different values: if the label is in another column, "
            "name it with --columns SENTENCE[,SENTENCE],LABEL"
        )
    quoted = shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'
    return f"train with a word for each label of the data: --words {quoted}"


def _chosen(row: Mapping[str, Any], sentences: tuple[str, ...], spec: TaskSpec, where: str) -> Example:
    """The label is the number of the right choice, from 0, or its text, or a list of right texts."""
    choices = _choices(row, spec, where)
    label = value_at(row, spec.label)
    right = sorted({choices.index(text) for text in _texts(label, spec.label, where) if text in choices})
    if not right:
        numbers = (whole_number_in(form) for form in _label_forms(label))
        right = [number for number in numbers if number is not None and number < len(choices)][:1]
    if not right:
        raise InputError(
            f"{where} has the label {shown(str(label))}; "
            f"expected the text of a choice, or its number from 0 to {len(choices) - 1}"
        )
    return Example(sentences, right[0], choices, tuple(right))


def _choices(row: Mapping[str, Any], spec: TaskSpec, where: str) -> tuple[str, ...]:
    """The choices of a row; of a list, each once."""
    values = {column: value_at(row, column) for column in spec.choices}
    choices = [text for column in spec.choices for text in _texts(values[column], column, where)]
    if any(isinstance(value, list) for value in values.values()):
        choices = list(dict.fromkeys(choices))
    if len(choices) < 2 or not all(text.strip() for text in choices):
        raise InputError(f"{where} has the choices {shown(choices)}; expected at least two, none of them empty")
    return tuple(choices)


def _written(row: Mapping[str, Any], sentences: tuple[str, ...], spec: TaskSpec, where: str) -> Example:
    """The label is the right text, or a list of right texts; a task without a label knows none."""
    if not spec.label:
        return Example(sentences, 0)
    accepted = tuple(_texts(value_at(row, spec.label), spec.label, where))
    if not accepted or not accepted[0].strip():
        raise InputError(
            f"{where} has no text in its column {spec.label!r}; expected a right answer, or a list of them"
        )
    return Example(sentences, 0, accepted=accepted)


_ANSWERED = {"words": _labelled, "choices": _chosen, "text": _written}


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """A column's value; `answers.text` looks into a table of that name."""
    if column in row or "." not in column:
        return row.get(column)
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any, column: str, where: str) -> str:
    """A value that is one text, a number or a truth as text."""
    if not isinstance(value, (str, int, float)):
        what = "a list" if isinstance(value, list) else "an object" if isinstance(value, Mapping) else shown(value)
        raise InputError(f"{where} has {what} in column {column!r}; expected one text")
    text = str(value)
    if not text.isascii():
        check_text(f"{where}, column {column!r},", text)
    return text


def _texts(value: Any, column: str, where: str) -> list[str]:
    """A value as texts: itself, or each of a list."""
    return [_text(item, column, where) for item in (value if isinstance(value, list) else [value])]


def _missing(column: str, row: Mapping[str, Any], where: str, place: str) -> str:
    names = [str(name) for name in row if name is not None]
    if column in names:
        return f"{place} has no value for column {column!r}"
    return (
        f"{where} has no column {column!r} (it has: {', '.join(names)}){suggestion(column, names)}; "
        "name the columns with --columns SENTENCE[,SENTENCE],LABEL"
    )


def _label_forms(value: Any) -> Iterator[str]:
    """How a label may be meant: as written, in lower case (True), as a number (1.0), true and false as 1 and 0."""
    text = str(value).strip()
    yield text
    yield text.lower()
    if text.endswith(".0"):
        yield text.removesuffix(".0")
    if text.lower() in ("false", "true"):
        yield str(int(text.lower() == "true"))


def _hub_splits(source: str, spec: TaskSpec) -> dict[str, list[Row]]:
    """The splits of `hf:NAME` or `hf:NAME:CONFIG`; examples without a gold label (-1 on the hub) do not count."""
    try:
        import datasets
    except ImportError:
        raise InputError("a Hugging Face dataset needs the extra: pip install 'noback[datasets]'") from None
    datasets.disable_progress_bars()
    name, _, config = source.removeprefix(_HUB).partition(":")
    try:
        found = datasets.load_dataset(name, config or None)
    except Exception as error:  # noqa: BLE001 (the library raises many kinds; all of them mean this)
        raise InputError(f"dataset {name!r} cannot be loaded: {' '.join(str(error).split())}") from None
    splits = {}
    for split, table in found.items():
        known = SPLITS.get(str(split).split("_")[0])
        rows = [(line, row) for line, row in enumerate(named_labels(table, spec), start=1) if row.get(spec.label) != -1]
        if known and known not in splits and rows:
            splits[known] = rows
    return splits


def named_labels(table: Any, spec: TaskSpec) -> Iterator[Mapping[str, Any]]:
    """The rows; labels by their names where the task knows the names and not the numbers."""
    names: list[str] = getattr(table.features.get(spec.label), "names", None) or []
    named = bool(names) and set(names) <= set(spec.labels)
    for row in table:
        number = row.get(spec.label)
        yield {**row, spec.label: names[number]} if named and number is not None and number >= 0 else row

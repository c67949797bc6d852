"""A task's specification: a short TOML file with a template, label words and the columns of its data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from noback.errors import InputError
from noback.options import positive, suggestion
from noback.tasks.template import Template, parse_template

_LIBRARY = Path(__file__).parent / "library"
METRICS = ("accuracy", "f1", "mcc")


@dataclass(frozen=True)
class TaskSpec:
    """What a task is, apart from its data and from any model."""

    name: str
    template: str
    words: Mapping[str, str]  # label -> label word, in the order of the logits
    sentences: tuple[str, ...]  # the columns that hold the sentences
    label: str = "label"  # the column that holds the label
    metric: str = "accuracy"
    max_length: int = 128
    sentence_limits: tuple[int, ...] = ()  # tokens of sentence 0, 1, ...; none: only the whole prompt is bounded
    version: int = 1
    about: str = ""

    def __post_init__(self) -> None:
        for name, limit in (("max_length", self.max_length), *(("sentence_limits", n) for n in self.sentence_limits)):
            positive(f"{name} of task {self.name!r}", limit)
        if len(self.words) < 2:
            raise InputError(f"task {self.name!r} has {len(self.words)} label words; expected at least two")
        if self.metric not in METRICS:
            raise InputError(f"metric of task {self.name!r} is {self.metric!r}; expected one of {', '.join(METRICS)}")
        if not all(word.strip() for word in self.words.values()):
            raise InputError(f"task {self.name!r} has an empty label word")
        if self.metric != "accuracy" and len(self.words) != 2:
            raise InputError(f"metric {self.metric!r} of task {self.name!r} needs two labels; it has {len(self.words)}")
        if self.parsed.sentences != len(self.sentences):
            raise InputError(
                f"the template of task {self.name!r} shows {self.parsed.sentences} sentences "
                f"but the task names {len(self.sentences)} columns for them"
            )

    def table(self) -> dict[str, Any]:
        """The specification as `spec_of` reads it."""
        table = {item.name: getattr(self, item.name) for item in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}

    @cached_property
    def parsed(self) -> Template:
        """The template's pieces."""
        return parse_template(self.template)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels as the data writes them, in the order of the logits."""
        return tuple(self.words)

    def limit_of(self, sentence: int) -> int | None:
        """How many tokens a sentence may have, or None."""
        return self.sentence_limits[sentence] if sentence < len(self.sentence_limits) else None


def task_names() -> list[str]:
    """The names of the tasks that ship with noback."""
    return sorted(path.stem for path in _LIBRARY.glob("*.toml"))


def load_spec(name: str) -> TaskSpec:
    """A task of the library by its name, or one's own by the path of its TOML file."""
    path = Path(name) if name.endswith(".toml") else _LIBRARY / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise InputError(f"task file {name!r} does not exist")
        raise InputError(
            f"unknown task {name!r}{suggestion(name, task_names())} "
            "(`noback tasks` lists them; one's own is given by the path of its .toml file)"
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"task file {name!r} is not TOML: {error}") from None
    return spec_of(table, name if name.endswith(".toml") else f"{name}.toml")


def spec_of(table: Mapping[str, Any], source: str) -> TaskSpec:
    """A specification from its table; a missing, unknown or wrong entry is named."""
    kinds = {  # entry -> (its kind, the kind of what it holds)
        "name": (str, str), "template": (str, str), "words": (dict, str), "sentences": (list, str), "label": (str, str),
        "metric": (str, str), "max_length": (int, int), "sentence_limits": (list, int), "version": (int, int),
        "about": (str, str),
    }  # fmt: skip
    for key, value in table.items():
        if key not in kinds:
            raise InputError(f"task file {source!r} has an unknown entry {key!r}{suggestion(key, kinds)}")
        outer, inner = kinds[key]
        if type(value) is not outer or not all(type(item) is inner for item in _held(value)):
            within = "" if outer is inner else f" of {inner.__name__}"
            raise InputError(f"entry {key!r} of task file {source!r} is {value!r}; expected a {outer.__name__}{within}")
    for key in ("name", "template", "words", "sentences"):
        if key not in table:
            raise InputError(f"task file {source!r} lacks the entry {key!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return TaskSpec(**values)


def _held(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]

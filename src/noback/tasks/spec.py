"""A task's specification: a short TOML file with a template or a prompt, label words and the columns of its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from noback.errors import InputError, shown
from noback.inputs import check_name, read_toml
from noback.options import suggestion
from noback.tasks.braces import is_braced, parse_braces
from noback.tasks.prompt import CHOICE, Prompt, parse_prompt
from noback.tasks.template import Template, parse_template
from noback.tasks.validation import CAUSAL, REWARD, check_spec

_LIBRARY = Path(__file__).parent / "library"


@dataclass(frozen=True)
class TaskSpec:
    """What a task is, apart from its data and from any model."""

    name: str
    template: str = ""  # of a task for masked LMs
    words: Mapping[str, str] = field(default_factory=dict)  # label -> label word, in the order of the logits
    sentences: tuple[str, ...] = ()  # the columns of the sentences; a prompt or a template in braces names them itself
    label: str = "label"  # the column that holds the label; empty: no right answer is known, a reward judges
    metric: str = "accuracy"
    max_length: int = 128
    sentence_limits: tuple[int, ...] = ()  # tokens of sentence 0, 1, ...; none: only the whole prompt is bounded
    version: int = 1
    about: str = ""

    prompt: str = ""  # of a task for causal LMs: columns in braces; the answer follows it
    preamble: str = ""  # stands before every prompt as it is written
    chat: bool = (
        False  # whether the prompt is a user's message, in the form that the tokenizer's chat template gives it
    )
    choices: tuple[str, ...] = ()  # columns that hold an example's choices, each a text or a list of texts
    continuation: str = ""  # how a choice reads after the prompt; empty: the choice itself
    replace: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # column -> text -> what stands for it
    stop: tuple[str, ...] = ()  # a written answer ends before any of these
    max_new_tokens: int = 0  # of a written answer

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "metric", REWARD)
        if any(word.startswith(" ") for word in self.words.values()):  # a word brings its space by itself
            object.__setattr__(self, "words", {label: word.lstrip(" ") for label, word in self.words.items()})
        check_spec(self)
        named = self.shown if self.prompt else self.parsed.columns
        if named:
            object.__setattr__(self, "sentences", named)

    def table(self) -> dict[str, Any]:
        """The specification as `spec_of` reads it."""
        table = {item.name: getattr(self, item.name) for item in fields(self)}
        table = {
            key: value for key, value in table.items() if value or key not in CAUSAL
        }  # journals of masked tasks stay as they were
        return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}

    @cached_property
    def parsed(self) -> Template:
        """The template's pieces."""
        return parse_braces(self.template) if is_braced(self.template) else parse_template(self.template)

    @cached_property
    def asked(self) -> Prompt:
        """The prompt's pieces."""
        return parse_prompt(self.prompt, f"the prompt of task {self.name!r}")

    @cached_property
    def continued(self) -> Prompt:
        """The continuation's pieces."""
        return parse_prompt(self.continuation or "{" + CHOICE + "}", f"the continuation of task {self.name!r}")

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that the prompt and the continuation name."""
        return tuple(dict.fromkeys((*self.asked.columns, *self.continued.columns)))

    @property
    def is_causal(self) -> bool:
        """Whether the task is for causal models."""
        return bool(self.prompt)

    @property
    def answer(self) -> str:
        """What an answer is: one of the label `words`, one of the row's `choices`, or a `text` that is written."""
        if self.words:
            return "words"
        return "choices" if self.choices else "text"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data: sentences, choices, the label."""
        return (*self.sentences, *self.choices, *filter(None, [self.label]))

    def rendered(self, sentences: tuple[str, ...]) -> str:
        """The preamble and the prompt of a row."""
        return self.preamble + self.asked.render(self._values(sentences))

    def rendered_choice(self, sentences: tuple[str, ...], choice: str) -> str:
        """A choice as it reads after the prompt."""
        return self.continued.render(self._values(sentences), choice)

    def _values(self, sentences: tuple[str, ...]) -> dict[str, str]:
        values = dict(zip(self.sentences, sentences, strict=True))
        for column, table in self.replace.items():
            for text, instead in table.items():
                values[column] = values[column].replace(text, instead)
        return values

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
    if name.endswith(".toml"):
        return spec_of(read_toml(Path(name), "task file"), name)
    if name not in task_names():
        raise InputError(
            f"unknown task {shown(name)}{suggestion(name, task_names())} "
            "(`noback tasks` lists them; one's own is given by the path of its .toml file)"
        )
    return spec_of(read_toml(_LIBRARY / f"{name}.toml", "task file"), f"{name}.toml")


def spec_of(table: Mapping[str, Any], source: str) -> TaskSpec:
    """A specification from its table; a missing, unknown or wrong entry is named."""
    kinds = {  # entry -> (its kind, the kind of what it holds)
        "name": (str, str), "template": (str, str), "words": (dict, str), "sentences": (list, str), "label": (str, str),
        "metric": (str, str), "max_length": (int, int), "sentence_limits": (list, int), "version": (int, int),
        "about": (str, str), "prompt": (str, str), "preamble": (str, str), "chat": (bool, bool),
        "choices": (list, str), "continuation": (str, str),
        "replace": (dict, dict), "stop": (list, str), "max_new_tokens": (int, int),
    }  # fmt: skip
    for key, value in table.items():
        if key not in kinds:
            raise InputError(f"task file {source!r} has an unknown entry {shown(key)}{suggestion(key, kinds)}")
        outer, inner = kinds[key]
        if type(value) is not outer or not all(type(item) is inner for item in _held(value)):
            within = "" if outer is inner else f" of {inner.__name__}"
            raise InputError(
                f"entry {key!r} of task file {source!r} is {shown(value)}; expected a {outer.__name__}{within}"
            )
        for text in _texts(value):
            check_name(f"entry {key!r} of task file {source!r}", text)
    needed = ("template", "words") if is_braced(table.get("template", "")) else ("template", "words", "sentences")
    for key in ("name", *(() if table.get("prompt") else needed)):
        if key not in table:
            raise InputError(f"task file {source!r} lacks the entry {key!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return TaskSpec(**values)


def _held(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> Iterator[str]:
    """Every text in an entry, the keys of its tables too."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item

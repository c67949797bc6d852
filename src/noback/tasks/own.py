"""One's own template and label words, given in one line: what they change of the task that a run names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noback.embedded import DATA
from noback.errors import InputError
from noback.tasks.braces import is_braced, masks_in, parse_braces
from noback.tasks.one_line import words_of
from noback.tasks.prompt import parse_prompt
from noback.tasks.spec import TaskSpec, spec_of
from noback.tasks.template import is_starred, parse_template
from noback.tasks.validation import CAUSAL, METRICS

_CAUSAL_LENGTH = 2048  # max_length of a causal task, as in the library; rows are no longer than their texts
_OTHER_ANSWERS = ("choices", "continuation", "stop", "max_new_tokens")
_ESCAPED = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def own_name(task: str, data: str | None, template: str | None, words: object) -> str | None:
    """The name of a task of which template, words and data are one's own: the data's; None where it is another's."""
    if task not in DATA or None in (data, template, words):
        return None
    return name_of_data(str(data).removeprefix("hf:").partition(":")[0] if str(data).startswith("hf:") else str(data))


def name_of_data(path: str) -> str:
    """What a task is called that is made for some data: the file's or folder's name, without endings."""
    return Path(path).absolute().name.split(".")[0] or "own"


def with_own(
    spec: TaskSpec,
    template: str | None,
    words: str | Mapping[str, str] | Mapping[int, str] | None,
    name: str | None = None,
) -> TaskSpec:
    """The task with one's own template and words in place of its; with a `name` nothing else of it is left."""
    table: dict[str, Any] = {"name": name} if name is not None else spec.table()
    if words is not None:
        table = {key: value for key, value in table.items() if key not in _OTHER_ANSWERS}
        table["words"] = words_of(words)
        if table.get("metric") not in METRICS:
            table.pop("metric", None)
    if template is not None:
        table = _with_template(table, template)
    return spec_of(table, table["name"])


def _with_template(table: dict[str, Any], template: str) -> dict[str, Any]:
    """A task's table with another template, or another prompt where the template has no mask."""
    if is_starred(template) and not is_braced(template):
        count = parse_template(template).sentences
        known, usual = table.get("sentences", []), [f"sentence{number + 1}" for number in range(count)]
        sentences = known if len(known) == count else usual if count > 1 else ["sentence"]
        return {**_without(table, *CAUSAL), "sentences": sentences, "template": template}
    text = re.sub(r"\\[nt\\]", lambda found: _ESCAPED[found[0]], template)
    if not masks_in(text):
        return _with_prompt(table, text)
    if not table.get("words"):
        raise InputError(f"template {template!r} has a mask and the task no label words; give them with --words")
    columns = list(parse_braces(text).columns)
    same = columns == list(table.get("sentences", ()))
    kept = _without(table, *CAUSAL, "sentences", *(() if same else ("sentence_limits",)))
    return {**kept, "template": text}


def _with_prompt(table: dict[str, Any], prompt: str) -> dict[str, Any]:
    shown = parse_prompt(prompt + table.get("continuation", ""), f"template {prompt!r}").columns
    if not shown:
        raise InputError(f"template {prompt!r} shows no column; expected one of the data's in braces, such as {{text}}")
    kept = _without(table, "template", "sentences", "sentence_limits")
    if "replace" in table:
        kept["replace"] = {column: texts for column, texts in table["replace"].items() if column in shown}
    length = table["max_length"] if "prompt" in table else _CAUSAL_LENGTH
    return {**kept, "prompt": prompt, "max_length": length}


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}

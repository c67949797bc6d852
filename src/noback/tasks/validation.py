"""What a task's specification must hold to be sound; what does not is refused with a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noback.errors import InputError
from noback.options import whole

if TYPE_CHECKING:
    from noback.tasks.spec import TaskSpec

METRICS = ("accuracy", "f1", "mcc")
TEXT_METRICS = ("token_f1", "exact_match")
REWARD = "reward"  # the metric of a task without a label
# Entries of causal tasks alone.
CAUSAL = ("prompt", "preamble", "chat", "choices", "continuation", "replace", "stop", "max_new_tokens")


def check_spec(spec: TaskSpec) -> None:
    """Refuse a specification that makes no sense."""
    for name, limit in (("max_length", spec.max_length), *(("sentence_limits", n) for n in spec.sentence_limits)):
        whole(f"{name} of task {spec.name!r}", limit)
    if spec.prompt:
        _check_causal(spec)
    else:
        _check_masked(spec)
    _check_metric(spec)
    for column in (*spec.sentences, *spec.choices):
        if not column.strip():
            raise InputError(f"task {spec.name!r} names a column without a name; expected the name of each column")
    if not spec.label and not (spec.is_causal and spec.answer == "text"):
        raise InputError(f"task {spec.name!r} has an empty label; only a task whose answers are written needs none")


def _check_masked(spec: TaskSpec) -> None:
    _check_words(spec)
    for key in CAUSAL:
        if getattr(spec, key):
            raise InputError(f"task {spec.name!r} has the entry {key!r}, which needs a prompt in place of its template")
    named = spec.parsed.columns
    if named and spec.sentences not in ((), named):
        raise InputError(f"task {spec.name!r} names the sentences {', '.join(spec.sentences)}; its template names them")
    if not named and spec.parsed.sentences != len(spec.sentences):
        raise InputError(
            f"the template of task {spec.name!r} shows {spec.parsed.sentences} sentences "
            f"but the task names {len(spec.sentences)} columns for them"
        )


def _check_words(spec: TaskSpec) -> None:
    if len(spec.words) < 2:
        raise InputError(f"task {spec.name!r} has {len(spec.words)} label words; expected at least two")
    for label, word in spec.words.items():
        if not word.strip():
            raise InputError(f"label {label!r} of task {spec.name!r} has an empty label word; write one for it")


def _check_causal(spec: TaskSpec) -> None:
    for key in ("template", "sentence_limits"):
        if getattr(spec, key):
            raise InputError(f"task {spec.name!r} has a prompt and {key!r}; expected only one of them")
    if spec.prompt.endswith((" ", "\t")):
        raise InputError(f"the prompt of task {spec.name!r} ends with a space; leave it out: an answer brings its own")
    if not spec.asked.columns:
        raise InputError(f"the prompt of task {spec.name!r} shows no column; expected one in braces, such as {{text}}")
    if spec.sentences not in ((), spec.shown):
        raise InputError(f"task {spec.name!r} names the sentences {', '.join(spec.sentences)}; its prompt names them")
    for column, table in spec.replace.items():
        if column not in spec.shown or not all(isinstance(value, str) for value in table.values()):
            raise InputError(
                f"entry 'replace' of task {spec.name!r} has {column!r}; "
                "expected a column of the prompt, and texts in it"
            )
    _check_answer(spec)


def _check_answer(spec: TaskSpec) -> None:
    if spec.words:
        _check_words(spec)
    if spec.words and spec.choices:
        raise InputError(f"task {spec.name!r} has label words and choices; expected only one of them")
    if spec.continuation and not spec.choices:
        raise InputError(f"task {spec.name!r} has a continuation and no choices; name the columns that hold them")
    if spec.answer == "text":
        whole(f"max_new_tokens of task {spec.name!r}", spec.max_new_tokens)
    elif spec.stop or spec.max_new_tokens:
        raise InputError(
            f"task {spec.name!r} has an answer to choose; 'stop' and 'max_new_tokens' are for written ones"
        )
    if "" in spec.stop:
        raise InputError(f"task {spec.name!r} has an empty text in 'stop'")


def _check_metric(spec: TaskSpec) -> None:
    if spec.metric == REWARD and not spec.label:
        return
    known = TEXT_METRICS if spec.answer == "text" and spec.is_causal else METRICS
    if spec.metric not in known:
        raise InputError(f"metric of task {spec.name!r} is {spec.metric!r}; expected one of {', '.join(known)}")
    if spec.metric in ("f1", "mcc") and len(spec.words) != 2:
        raise InputError(f"metric {spec.metric!r} of task {spec.name!r} needs two labels; it has {len(spec.words)}")

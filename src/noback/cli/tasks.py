"""noback tasks: the tasks that ship with noback."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from noback.cli.commands import add_json, say

if TYPE_CHECKING:
    from noback.tasks import TaskSpec

HELP = "list the tasks, or show one"
DESCRIPTION = """
List the tasks that ship with noback, or show one: its template, label words and the columns of its data.

  noback tasks
  noback tasks rte
  noback tasks mine.toml
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("task", nargs="?", metavar="TASK", help="a task's name, or the path of one's own .toml")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """List or show."""
    from noback.tasks import load_spec, task_names

    specs = [load_spec(name) for name in ([arguments.task] if arguments.task else task_names())]
    say(
        arguments,
        {"tasks": [_values(spec) for spec in specs]},
        "\n".join(_text(spec, bool(arguments.task)) for spec in specs),
    )


def _values(spec: TaskSpec) -> dict[str, Any]:
    return {"columns": list(spec.columns), **spec.table()}


def _text(spec: TaskSpec, whole: bool) -> str:
    if not whole:
        return f"{spec.name:14s} {spec.about}"
    limits = "" if spec.is_causal else f"; sentences {list(spec.sentence_limits) or 'as long as fits'}"
    lines = [
        *(_asked(spec) if spec.is_causal else [("template", spec.template), ("prompt", _filled(spec))]),
        *([("words", ", ".join(f"{label}: {word}" for label, word in spec.words.items()))] if spec.words else []),
        ("columns", ", ".join(spec.columns)),
        ("metric", spec.metric),
        ("limits", f"{spec.max_length} tokens{limits}"),
    ]
    return "\n".join(
        [f"{spec.name} (version {spec.version}): {spec.about}", *(f"  {name:9s} {value}" for name, value in lines)]
    )


def _filled(spec: TaskSpec) -> str:
    return spec.parsed.shown(spec.sentences)


def _asked(spec: TaskSpec) -> list[tuple[str, str]]:
    """A causal task's prompt and what may follow it."""
    lines = [("for", "causal models"), ("prompt", repr(spec.prompt))]
    if spec.answer == "choices":
        lines += [("choices", ", ".join(spec.choices)), ("read as", repr(spec.continuation or "{choice}"))]
    if spec.answer == "text":
        stops = f", or {', '.join(map(repr, spec.stop))}" if spec.stop else ""
        lines.append(("answer", f"written, until the model ends it{stops}, at most {spec.max_new_tokens} tokens"))
    return lines

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
    return {
        "name": spec.name, "about": spec.about, "template": spec.template, "words": dict(spec.words),
        "sentences": list(spec.sentences), "label": spec.label, "metric": spec.metric,
        "max_length": spec.max_length, "sentence_limits": list(spec.sentence_limits), "version": spec.version,
    }  # fmt: skip


def _text(spec: TaskSpec, whole: bool) -> str:
    if not whole:
        return f"{spec.name:8s} {spec.about}"
    prompt = spec.parsed.shown(spec.sentences)
    words = ", ".join(f"{label}: {word}" for label, word in spec.words.items())
    return (
        f"{spec.name} (version {spec.version}): {spec.about}\n"
        f"  template  {spec.template}\n  prompt    {prompt}\n  words     {words}\n"
        f"  columns   {', '.join((*spec.sentences, spec.label))}\n  metric    {spec.metric}\n"
        f"  limits    {spec.max_length} tokens; sentences {list(spec.sentence_limits) or 'as long as fits'}"
    )

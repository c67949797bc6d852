"""noback tasks: the tasks that ship with noback."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import tomli_w

from noback.cli.commands import add_json, say
from noback.cli.new_task import run_new
from noback.errors import InputError, printable

if TYPE_CHECKING:
    from noback.tasks import TaskSpec

HELP = "list the tasks, show one, or write one for your data"
DESCRIPTION = """
List the tasks that ship with noback, or show one: its template, label words and the columns of its data.
`new` looks at your data and writes a task file: the columns, the labels, and a word for each that is one token.

  noback tasks
  noback tasks rte
  noback tasks mine.toml
  noback tasks rte --toml > mine.toml             a task's file, to start from
  noback tasks new --data my.csv                  writes my.toml for your data, and says how to train with it
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("task", nargs="?", metavar="TASK", help="a task's name, the path of one's own .toml, or new")
    parser.add_argument("--toml", action="store_true", help="print the task as the TOML file that --task reads")
    group = parser.add_argument_group("a new task")
    group.add_argument("--data", metavar="FILE", help="the data to look at: a file, or a folder of split files")
    group.add_argument(
        "--columns", metavar="NAMES", help="its columns, texts first and the label last; none: by a look"
    )
    group.add_argument(
        "--model", default="mini", metavar="NAME", help="whose tokens the words must be (default %(default)s)"
    )
    group.add_argument("--out", metavar="FILE", help="the task's new file (default: the data's name and .toml)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """List, show or make one."""
    if arguments.task == "new":
        run_new(arguments)
        return
    from noback.tasks import load_spec, task_names

    for flag in ("data", "columns", "out"):
        if getattr(arguments, flag) is not None:
            raise InputError(f"--{flag} is for a new task: noback tasks new --data FILE")
    if arguments.toml:
        if arguments.json or not arguments.task:
            raise InputError("--toml prints one task: name it, and leave out --json")
        print(printable(tomli_w.dumps(load_spec(arguments.task).table())), end="", flush=True)
        return
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

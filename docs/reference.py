"""Write the reference pages from the code: `make reference`, or `python docs/reference.py`.

docs/reference/cli.md comes from the argparse parsers, docs/reference/python.md from the names in `noback.__all__`.
A test fails where a page differs from what this script gives. Nothing here depends on the width of a terminal, on the
machine or on how a version of Python formats its help.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import noback
from noback.cli.groups import actions_of
from noback.cli.main import _parser
from noback.options import option_kinds

PAGES = Path(__file__).parent / "reference"
NOTE = "<!-- Made by docs/reference.py. Do not edit: change the code, then run `make reference`. -->"
WIDTH = 120
OPTIONS = "Options of a run"  # the flags that train, compare, epsilon and baseline share
GROUPS = {"Functions": inspect.isfunction, "Classes": inspect.isclass}


def main() -> None:
    """Write both pages."""
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The text of each page by its file name."""
    return {"cli.md": _page(_cli()), "python.md": _page(_python())}


def _page(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


# The command line


def _cli() -> Iterator[str]:
    parser = _parser(None)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    yield "# Command line"
    yield NOTE
    yield _prose(
        "`noback COMMAND --help` prints the same text. Results go to stdout and everything else to stderr. "
        "The exit code is 0, 2 for input that cannot be used, 130 after Ctrl-C, and 1 for other errors."
    )
    yield (
        "\n".join(f"- [`noback {name}`](#noback-{name})" for name in commands) + f"\n- [{OPTIONS}](#options-of-a-run)"
    )
    shared = _shared(commands)
    for name, command in commands.items():
        yield from _command(name, command, shared)
        for action, one in actions_of(command).items():
            yield from _command(f"{name} {action}", one, shared)
    yield f"## {OPTIONS}"
    yield _prose(
        "Flags of `train`, `compare`, `epsilon` and `baseline`. A flag wins over `--config`, and `--set` over a flag."
    )
    for title, actions in _groups(commands["train"]):
        part = [action for action in actions if action.dest in shared]
        if part:
            yield f"### {title.capitalize()}"
            yield _actions(part)


def _shared(commands: dict[str, argparse.ArgumentParser]) -> dict[str, str]:
    """What the flags of a run's configuration set, and the entry of each."""
    train, baseline = commands["train"], commands["baseline"]
    both = {action.dest for action in baseline._actions} - {"help", "json"}
    return {action.dest: _item(action) for action in train._actions if action.dest in both}


def _command(name: str, command: argparse.ArgumentParser, shared: dict[str, str]) -> Iterator[str]:
    yield f"## noback {name}"
    yield _code(str(command.usage))
    yield from _description(command.description or "")
    run = [action for action in command._actions if action.dest in shared]
    takes = {action.dest for action in run} == set(shared)  # a run's configuration, not a flag or two of the same name
    for title, actions in _groups(command):
        own = [action for action in actions if not takes or action.dest not in shared]
        if own:
            yield f"{title.capitalize()}:"
            yield _actions(own)
    if takes:
        others = [action for action in run if _item(action) != shared[action.dest]]
        yield f"Also takes the [options of a run](#options-of-a-run).{' They differ here in:' if others else ''}"
        yield _actions(others)


def _groups(command: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """A command's arguments as its help groups them."""
    for group in command._action_groups:
        yield (
            {"positional arguments": "arguments"}.get(str(group.title), str(group.title)),
            [action for action in group._group_actions if action.dest != "help"],
        )


def _description(text: str) -> Iterator[str]:
    """A command's description: paragraphs as prose, its indented examples as code."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if paragraph.startswith("  "):
            yield _code(textwrap.dedent(paragraph))
        else:
            yield _prose(paragraph)


def _actions(actions: Iterable[argparse.Action]) -> str:
    return "\n".join(_item(action) for action in actions)


def _item(action: argparse.Action) -> str:
    takes_value = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    words = f" {action.metavar or action.dest}" if action.option_strings and takes_value else ""
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    return _entry(f"`{name}{words}`", (action.help or "").replace("%%", "%"))


# Python


def _python() -> Iterator[str]:
    names = [(name, getattr(noback, name)) for name in noback.__all__]
    yield "# Python API"
    yield NOTE
    yield _prose(
        "The public names of `noback`. Everything else may change without notice. "
        "How to use them: [from Python](../guides/python.md)."
    )
    for title, belongs in GROUPS.items():
        part = [(name, thing) for name, thing in names if belongs(thing)]
        yield f"## {title}"
        yield "\n".join(_summary(name, thing) for name, thing in part)
        for name, thing in part:
            yield from _class(name, thing) if inspect.isclass(thing) else _function(name, thing)


def _summary(name: str, thing: Any) -> str:
    return _entry(f"[`{name}`](#{name.lower()})", _docstring(thing).split("\n\n", maxsplit=1)[0])


def _function(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    yield _code(_signature(name, thing), "py")
    yield from _documentation(thing)


def _class(name: str, thing: type[Any]) -> Iterator[str]:
    yield f"### {name}"
    if issubclass(thing, Exception):
        yield _code(f"class {name}({thing.__bases__[0].__name__})", "py")
    else:
        yield _code(_signature(name, thing), "py")
    yield from _documentation(thing)
    if dataclasses.is_dataclass(thing):
        yield "\n".join(_field(thing, item) for item in dataclasses.fields(thing) if not item.name.startswith("_"))
    yield "\n".join(_member(member, value) for member, value in vars(thing).items() if _is_public(member, value))


def _field(owner: type[Any], item: dataclasses.Field[Any]) -> str:
    kinds = option_kinds(_hints(owner).get(item.name))
    choices = [kind.kind for kind in kinds if hasattr(kind, "kind")] or item.metadata.get("choices", ())
    text = item.metadata.get("help") or _comment(owner, item.name)
    text += f": {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
    return _entry(f"`{item.name}: {_annotation(item.type)}`", text)


def _hints(owner: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except NameError:  # a name that only type checkers import
        return {}


def _comment(owner: type[Any], name: str) -> str:
    """The comment that stands on a field's line: the help of a dataclass that is no option."""
    found = re.search(rf"^    {name}: [^#\n]*#\s*(.*)$", inspect.getsource(owner), flags=re.MULTILINE)
    return found.group(1) if found else ""


def _is_public(name: str, value: Any) -> bool:
    return not name.startswith("_") and (isinstance(value, (property, classmethod)) or inspect.isfunction(value))


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return _entry(f"`.{name}`", _docstring(value))
    function = value.__func__ if isinstance(value, classmethod) else value
    shown = ", ".join(
        parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")
    )
    return _entry(f"`.{name}({shown})`", _docstring(function))


def _signature(name: str, thing: Any) -> str:
    """A signature as one writes it: on one line where it fits, else a line a parameter."""
    signature = inspect.signature(thing)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter))
    returns = (
        ""
        if signature.return_annotation in (signature.empty, None, "None") or inspect.isclass(thing)
        else (f" -> {_annotation(signature.return_annotation)}")
    )
    line = f"{name}({', '.join(parts)}){returns}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    hint = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}{hint}"
    if parameter.default is parameter.empty:
        return parameter.name + hint
    factory = type(parameter.default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
    default = "..." if factory or inspect.isfunction(parameter.default) else repr(parameter.default)
    return f"{parameter.name}{hint} = {default}" if hint else f"{parameter.name}={default}"


def _annotation(hint: Any) -> str:
    if isinstance(hint, typing.ForwardRef):
        return hint.__forward_arg__
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def _documentation(thing: Any) -> Iterator[str]:
    for paragraph in _docstring(thing).split("\n\n"):
        yield _code(paragraph, "pycon") if paragraph.startswith(">>>") else _prose(paragraph, escape=True)


def _docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


# Markdown


def _prose(text: str, *, escape: bool = False) -> str:
    words = " ".join(text.split())
    return textwrap.fill(_escaped(words) if escape else words, WIDTH, break_long_words=False, break_on_hyphens=False)


def _entry(name: str, text: str) -> str:
    """One item of a list; `name` may have spaces, which must not be broken."""
    line = f"- {name}" + (f": {_escaped(' '.join(text.split()))}" if text else "")
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _escaped(text: str) -> str:
    """Text whose stars and angle brackets stay what they are, outside of code spans."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if index % 2 else re.sub(r"([*<\[])", r"\\\1", part) for index, part in enumerate(parts))


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    main()

"""Flags of `train`, made from the option objects: a field's help is the flag's help, its default the flag's default."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noback.config import RunConfig, config_of, read_config, renamed
from noback.errors import InputError, shown
from noback.keywords import base_of, config_flags, field_at, kind_table, kinds_of, owned, put, text_as
from noback.options import kind_words, off_word, option_kinds

_METAVARS = {"--template": "TEXT", "--words": "LABEL=WORD,..."}


def add_flags(parser: Any, options: type[Any], flags: Mapping[str, str], *, several_eps: bool = False) -> None:
    """Give a parser, or a group of one, the flags of some options."""
    for flag, path in flags.items():
        field, default, hint, owners = field_at(options, path)
        kinds = option_kinds(hint)
        choices = kind_words(kinds) if kinds else field.metadata["choices"]
        default = _default_word(field, hint, kinds) if kinds else default
        whose = f"{path.split('.')[0]} {' or '.join(owners)}: " if owners else ""
        text = whose + _help(options, path, field) + (f": {', '.join(choices)}" if choices else "") + _shown(default)
        metavar = _METAVARS.get(flag) or _metavar(hint)
        if several_eps and flag == "--eps":
            text, metavar = text + "; several, comma-separated, are compared", "LIST"
        parser.add_argument(flag, dest=path, default=None, metavar=metavar, help=text.replace("%", "%%"))


def _default_word(field: dataclasses.Field[Any], hint: Any, kinds: list[type[Any]]) -> str | None:
    """The word for what an option of kinds is by default: a kind's, or that for none of them; None: the help says."""
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory().kind)
    return off_word(kinds) or (None if type(None) in typing.get_args(hint) else str(kinds[0].kind))


def config_choices() -> dict[str, tuple[str, ...]]:
    """What an option of a run's configuration may be, by its place; only those that have choices."""
    found = dict[str, tuple[str, ...]]()
    for path in config_flags().values():
        field, _, hint, _ = field_at(RunConfig, path)
        choices = kind_words(option_kinds(hint)) or field.metadata["choices"]
        found |= {path: tuple(choices)} if choices else {}
    return found


def _help(options: type[Any], path: str, field: dataclasses.Field[Any]) -> str:
    """A field's help; where kinds differ in it, that of each kind with its default."""
    fields = {kind.kind: item for kind, item in owned(options, path) if hasattr(kind, "kind")}
    if len({item.metadata["help"] for item in fields.values()}) < 2:
        return str(field.metadata["help"])
    return "; ".join(f"{kind}: {item.metadata['help']}{_shown(item.default)}" for kind, item in fields.items())


def _shown(default: Any) -> str:
    return "" if default in (None, dataclasses.MISSING) else f" (default {default})"


def add_config_flags(parser: argparse.ArgumentParser, *, several_eps: bool = False) -> None:
    """Give a parser every flag of a run's configuration; `several_eps`: --eps takes a list."""
    add_flags(parser, RunConfig, config_flags(), several_eps=several_eps)
    parser.add_argument(
        "--adapt-ties", action="store_true",
        help="for objectives that are piecewise constant: raise eps while more than a fifth of the slopes are exactly "
        "zero, at most to 0.01 or ten times --eps; the journal records it (--set adapt_ties.largest=0.05)",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE", help="a TOML file of options, such as a run's run.toml; flags win over it"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any option by its name: --set rule.lr=2e-5"
    )


def config_from(arguments: argparse.Namespace) -> RunConfig:
    """The configuration that the flags describe."""
    table: dict[str, Any] = renamed(read_config(Path(arguments.config))) if arguments.config else {}
    settings, hints = [_setting(pair) for pair in arguments.set], typing.get_type_hints(RunConfig)
    texts = [(path, text) for path, text in settings if isinstance(text, str)]
    named = [(path, kinds, text) for path, text in texts if (kinds := kinds_of(hints, path))]
    for path, kinds, text in named:  # a kind before its options, which may be flags
        put(table, path, kind_table(table.get(path), kinds, text))
    put_flags(table, arguments, RunConfig, config_flags())
    if arguments.adapt_ties:
        put(table, "adapt_ties", table.get("adapt_ties") or {})
    for path, value in settings:
        if not (isinstance(value, str) and kinds_of(hints, path)):
            put(table, path, value)
    return config_of(table)


def put_flags(
    table: dict[str, Any], arguments: argparse.Namespace, options: type[Any], flags: Mapping[str, str]
) -> None:
    """Put what the flags say into a table of options."""
    for path in sorted(flags.values(), key=lambda path: path.count(".")):  # a kind before its options
        text = getattr(arguments, path)
        if text is not None:
            hint = field_at(options, path)[2]
            kinds = option_kinds(hint)
            put(table, path, kind_table(table.get(path), kinds, text) if kinds else text_as(text, hint, path))


def takes_list(path: str) -> bool:
    """Whether an option may be given several values with commas between: a number, or one of some names."""
    if not _exists(path):
        return False
    field, _, hint, _ = field_at(RunConfig, path)
    return base_of(hint) in (int, float) or bool(option_kinds(hint)) or bool(field.metadata["choices"])


def value_of(text: str, path: str) -> Any:
    """One value of an option, as a text says it; a kind stays a text."""
    hint = field_at(RunConfig, path)[2]
    return text if option_kinds(hint) else text_as(text, hint, path)


def _exists(path: str) -> bool:
    try:
        return bool(owned(RunConfig, path))
    except KeyError:  # a parent that is none
        return False


def numbers(name: str, text: str | None) -> list[float]:
    """The numbers of a comma-separated list; none where it was not given."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise InputError(f"{name} is {shown(text)}; expected numbers with commas between, such as 1e-3,1e-2") from None


def _metavar(hint: Any) -> str:
    return {int: "N", float: "X"}.get(base_of(hint), "NAME")


def _setting(pair: str) -> tuple[str, Any]:
    path, equals, text = pair.partition("=")
    if not equals:
        raise InputError(f"--set {shown(pair)} has no '='; expected KEY=VALUE, such as rule.lr=2e-5")
    return path.strip(), _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, a number of over 4,300 digits, or lists in lists without end
        return text
    return table["value"] if len(table) == 1 else text

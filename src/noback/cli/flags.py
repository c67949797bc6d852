"""Flags of `train`, made from the option objects: a field's help is the flag's help, its default the flag's default."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from pathlib import Path
from typing import Any

from noback.cli.flag_names import FLAGS
from noback.config import RunConfig, config_of, read_config
from noback.errors import InputError
from noback.options import option_kinds, table_of_text


def add_config_flags(parser: argparse.ArgumentParser, *, several_eps: bool = False) -> None:
    """Give a parser every flag of a run's configuration; `several_eps`: --eps takes a list."""
    group = parser.add_argument_group("the run")
    for flag, path in FLAGS.items():
        field, default, hint = _field(path)
        kinds = option_kinds(hint)
        choices = [kind.kind for kind in kinds] if kinds else field.metadata["choices"]
        default = choices[0] if kinds else default
        shown = "" if default is None else f" (default {default})"
        text = field.metadata["help"] + (f": {', '.join(choices)}" if choices else "") + shown
        metavar = _metavar(hint)
        if several_eps and flag == "--eps":
            text, metavar = text + "; several, comma-separated, are compared", "LIST"
        group.add_argument(flag, dest=path, default=None, metavar=metavar, help=text.replace("%", "%%"))
    group.add_argument(
        "--adapt-ties", action="store_true",
        help="for objectives that are staircases: raise eps while more than a fifth of the slopes are exactly "
        "zero, at most to 0.01 or ten times --eps; the journal records it (--set estimator.adapt_ties.largest=0.05)",
    )  # fmt: skip
    group.add_argument(
        "--config", metavar="FILE", help="a TOML file of options, such as a run's run.toml; flags win over it"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any option by its name: --set rule.lr=2e-5"
    )


def config_from(arguments: argparse.Namespace) -> RunConfig:
    """The configuration that the flags describe."""
    table: dict[str, Any] = read_config(Path(arguments.config)) if arguments.config else {}
    for path in FLAGS.values():
        text = getattr(arguments, path)
        if text is not None:
            hint = _field(path)[2]
            kinds = option_kinds(hint)
            _put(table, path, table_of_text(kinds, text) if kinds else _value(text, hint, path))
    if arguments.adapt_ties:
        _put(table, "estimator.adapt_ties", _at(table, "estimator.adapt_ties") or {})
    for pair in arguments.set:
        path, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair!r} has no '='; expected KEY=VALUE, such as rule.lr=2e-5")
        _put(table, path.strip(), _toml_value(text.strip()))
    return config_of(table)


def numbers(name: str, text: str | None) -> list[float]:
    """The numbers of a comma-separated list; none where it was not given."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected numbers with commas between, such as 1e-3,1e-2") from None


def _field(path: str) -> tuple[dataclasses.Field[Any], Any, Any]:
    """A field of the configuration tree, its default and its type."""
    kind: Any = RunConfig
    *parents, name = path.split(".")
    for parent in parents:
        kind = typing.get_type_hints(kind)[parent]
    field = next(item for item in dataclasses.fields(kind) if item.name == name)
    return field, field.default, typing.get_type_hints(kind)[name]


def _base(hint: Any) -> Any:
    return next((part for part in typing.get_args(hint) if part is not type(None)), hint)


def _metavar(hint: Any) -> str:
    return {int: "N", float: "X"}.get(_base(hint), "NAME")


def _value(text: str, hint: Any, path: str) -> Any:
    kind = _base(hint)
    try:
        return kind(text)
    except ValueError:
        words = {int: "a whole number", float: "a number"}
        raise InputError(
            f"{path.rsplit('.', maxsplit=1)[-1]} is {text!r}; expected {words.get(kind, 'a text')}"
        ) from None


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if isinstance(table.get(parent), str):  # adapter = "lora" is short for a table
            kinds = option_kinds(typing.get_type_hints(RunConfig).get(parent))
            table[parent] = table_of_text(kinds, table[parent]) if kinds else table[parent]
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InputError(f"option {path!r} does not exist: {parent!r} is no table of options")
    table[name] = value


def _at(table: Any, path: str) -> Any:
    for name in path.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table

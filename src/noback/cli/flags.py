"""Flags of `train`, made from the option objects: a field's help is the flag's help, its default the flag's default."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from noback.config import RunConfig, config_of, read_config, renamed
from noback.errors import InputError, shown
from noback.flag_names import FLAGS
from noback.options import option_kinds, table_of_text

Flags = dict[str, str]  # flag -> where it stands in the options
_METAVARS = {"--template": "TEXT", "--words": "LABEL=WORD,..."}
_METHODS = ("estimator", "rule", "noise", "engine")  # whose kinds' own options have flags of their own


def config_flags() -> dict[str, str]:
    """Every flag of a run's configuration and where it stands: the usual ones, then each kind's own options."""
    return method_flags(RunConfig, _METHODS, FLAGS)


def method_flags(options: type[Any], methods: Sequence[str], known: Mapping[str, str] = MappingProxyType({})) -> Flags:
    """The known flags, one for each method's kind, and one for each option that some kind has."""
    found, hints = dict(known), typing.get_type_hints(options)
    for method in methods:
        found |= {} if method in found.values() else {f"--{method}": method}
        for item in (item for kind in option_kinds(hints[method]) for item in dataclasses.fields(kind)):
            path, flag = f"{method}.{item.name}", f"--{item.name.replace('_', '-')}"
            if path not in found.values():
                found[f"--{method}-{flag[2:]}" if flag in found else flag] = path
    return found


def add_flags(parser: Any, options: type[Any], flags: Mapping[str, str], *, several_eps: bool = False) -> None:
    """Give a parser, or a group of one, the flags of some options."""
    for flag, path in flags.items():
        field, default, hint, owners = _field(options, path)
        kinds = option_kinds(hint)
        choices = [kind.kind for kind in kinds] if kinds else field.metadata["choices"]
        default = choices[0] if kinds and type(None) not in typing.get_args(hint) else default
        whose = f"{path.split('.')[0]} {' or '.join(owners)}: " if owners else ""
        text = whose + _help(options, path, field) + (f": {', '.join(choices)}" if choices else "") + _shown(default)
        metavar = _METAVARS.get(flag) or _metavar(hint)
        if several_eps and flag == "--eps":
            text, metavar = text + "; several, comma-separated, are compared", "LIST"
        parser.add_argument(flag, dest=path, default=None, metavar=metavar, help=text.replace("%", "%%"))


def config_choices() -> dict[str, tuple[str, ...]]:
    """What an option of a run's configuration may be, by its place; only those that have choices."""
    found = dict[str, tuple[str, ...]]()
    for path in config_flags().values():
        field, _, hint, _ = _field(RunConfig, path)
        choices = [kind.kind for kind in option_kinds(hint)] or field.metadata["choices"]
        found |= {path: tuple(choices)} if choices else {}
    return found


def _help(options: type[Any], path: str, field: dataclasses.Field[Any]) -> str:
    """A field's help; where kinds differ in it, that of each kind with its default."""
    fields = {kind.kind: item for kind, item in _owned(options, path) if hasattr(kind, "kind")}
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
    named = [(path, kinds, text) for path, text in settings if isinstance(text, str) if (kinds := _kinds(hints, path))]
    for path, kinds, text in named:  # a kind before its options, which may be flags
        _put(table, path, _kind_table(table.get(path), kinds, text))
    put_flags(table, arguments, RunConfig, config_flags())
    if arguments.adapt_ties:
        _put(table, "adapt_ties", table.get("adapt_ties") or {})
    for path, value in settings:
        if not (isinstance(value, str) and _kinds(hints, path)):
            _put(table, path, value)
    return config_of(table)


def put_flags(
    table: dict[str, Any], arguments: argparse.Namespace, options: type[Any], flags: Mapping[str, str]
) -> None:
    """Put what the flags say into a table of options."""
    for path in sorted(flags.values(), key=lambda path: path.count(".")):  # a kind before its options
        text = getattr(arguments, path)
        if text is not None:
            hint = _field(options, path)[2]
            kinds = option_kinds(hint)
            _put(table, path, _kind_table(table.get(path), kinds, text) if kinds else _value(text, hint, path))


def _kind_table(before: Any, kinds: Sequence[type[Any]], text: str) -> dict[str, Any]:
    """The table of a kind; options that a file gives for the same kind stay."""
    table = table_of_text(kinds, text)
    same = isinstance(before, dict) and before.get("kind", kinds[0].kind) == table["kind"]
    return {**before, **table} if same else table


def takes_list(path: str) -> bool:
    """Whether an option may be given several values with commas between: a number, or one of some names."""
    if not _exists(path):
        return False
    field, _, hint, _ = _field(RunConfig, path)
    return _base(hint) in (int, float) or bool(option_kinds(hint)) or bool(field.metadata["choices"])


def value_of(text: str, path: str) -> Any:
    """One value of an option, as a text says it; a kind stays a text."""
    hint = _field(RunConfig, path)[2]
    return text if option_kinds(hint) else _value(text, hint, path)


def _exists(path: str) -> bool:
    try:
        return bool(_owned(RunConfig, path))
    except KeyError:  # a parent that is none
        return False


def numbers(name: str, text: str | None) -> list[float]:
    """The numbers of a comma-separated list; none where it was not given."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise InputError(f"{name} is {shown(text)}; expected numbers with commas between, such as 1e-3,1e-2") from None


def _field(options: type[Any], path: str) -> tuple[dataclasses.Field[Any], Any, Any, list[str]]:
    """A field of the configuration tree, its default, its type, and the kinds that have it where not all do."""
    owners, kinds = _owned(options, path), _kinds_at(options, path)
    first, field = owners[0]
    default = field.default if len({item.default for _, item in owners}) == 1 else None  # each kind has its own
    some = [kind.kind for kind, _ in owners] if len(owners) < len(kinds) else []
    return field, default, typing.get_type_hints(first)[field.name], some


def _owned(options: type[Any], path: str) -> list[tuple[Any, dataclasses.Field[Any]]]:
    """The kinds that have an option, and what each says of it."""
    name = path.rsplit(".", maxsplit=1)[-1]
    kinds = _kinds_at(options, path)
    return [(kind, item) for kind in kinds for item in dataclasses.fields(kind) if item.name == name]


def _kinds_at(options: type[Any], path: str) -> Sequence[type[Any]]:
    """The kinds among which an option is sought; at the top of the tree, the options themselves."""
    kinds: Sequence[type[Any]] = [options]
    for parent in path.split(".")[:-1]:
        kinds = option_kinds(typing.get_type_hints(kinds[0])[parent])
    return kinds


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
            f"{path.rsplit('.', maxsplit=1)[-1]} is {shown(text)}; expected {words.get(kind, 'a text')}"
        ) from None


def _setting(pair: str) -> tuple[str, Any]:
    path, equals, text = pair.partition("=")
    if not equals:
        raise InputError(f"--set {shown(pair)} has no '='; expected KEY=VALUE, such as rule.lr=2e-5")
    return path.strip(), _toml_value(text.strip())


def _kinds(hints: Mapping[str, Any], path: str) -> list[type[Any]]:
    """The kinds that an option may be of; none where it has no kinds."""
    return option_kinds(hints[path]) if path in hints else []


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, a number of over 4,300 digits, or lists in lists without end
        return text
    return table["value"] if len(table) == 1 else text


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

"""Options by the names that people give them: flags of the command line and keywords of Python, from one table."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from noback.config import RunConfig, config_of, table_of
from noback.errors import InputError, shown
from noback.flag_names import ELSEWHERE, EPOCHS, FLAGS
from noback.options import option_kinds, or_words, suggestion, table_of_text, words_of

Flags = dict[str, str]  # flag -> where it stands in the options
_METHODS = ("estimator", "rule", "noise", "readout", "engine")  # whose kinds' own options have flags of their own


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


def config_with(config: RunConfig | None, options: Mapping[str, Any]) -> RunConfig:
    """The configuration with options by keyword, which win over it: `lr`, `adapter="lora"`, as the flags have them."""
    places = {flag[2:].replace("-", "_"): path for flag, path in config_flags().items()} | {"adapt_ties": "adapt_ties"}
    for name in options:
        if name not in places:
            raise InputError(f"unknown option {shown(name)}{_other_name(name, places) or suggestion(name, places)}")
    table: dict[str, Any] = {} if config is None else config.given()
    for name in sorted(options, key=lambda name: places[name].count(".")):  # a kind before its options
        put(table, places[name], _given(table, places[name], options[name]))
    return config_of(table)


def _other_name(name: str, known: Mapping[str, str]) -> str:
    """What a keyword that other programs have is called here; nothing where no other is known by it."""
    flag = f"--{name.lower().replace('_', '-')}"
    if flag in EPOCHS:
        return ": noback counts steps, not epochs; an epoch is the number of training examples divided by batch"
    ours, _, value = ELSEWHERE.get(flag, "").partition(" ")
    kind, _, rest = value.partition(" --set adapter.")
    keyword = ours[2:].replace("-", "_")
    if keyword not in known:
        return ""
    if rest:
        return f": here it is {keyword}=noback.{kind.capitalize()}({rest.partition('=')[0]}=...)"
    return f": here it is {keyword}" + (f'="{kind}"' if kind else "")


def _given(table: Mapping[str, Any], path: str, value: Any) -> Any:
    """What a keyword says, as a table of options holds it."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if path == "adapt_ties" and isinstance(value, bool):
        return {} if value else None
    hint = field_at(RunConfig, path)[2]
    kinds = option_kinds(hint)
    if kinds and isinstance(value, tuple(kinds)):
        return table_of(value)
    if not isinstance(value, str):
        return value
    return kind_table(table.get(path), kinds, value) if kinds else text_as(value, hint, path)


def put(table: dict[str, Any], path: str, value: Any) -> None:
    """Put a value where it stands in a table of options."""
    *parents, name = path.split(".")
    for parent in parents:
        if isinstance(table.get(parent), str):  # adapter = "lora" is short for a table
            kinds = option_kinds(typing.get_type_hints(RunConfig).get(parent))
            table[parent] = table_of_text(kinds, table[parent]) if kinds else table[parent]
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InputError(f"option {path!r} does not exist: {parent!r} is no table of options")
    table[name] = value


def kind_table(before: Any, kinds: Sequence[type[Any]], text: str) -> dict[str, Any]:
    """The table of a kind; options that a file gives for the same kind stay."""
    table = table_of_text(kinds, text)
    same = isinstance(before, dict) and before.get("kind", kinds[0].kind) == table["kind"]
    return {**before, **table} if same else table


def field_at(options: type[Any], path: str) -> tuple[dataclasses.Field[Any], Any, Any, list[str]]:
    """A field of the configuration tree, its default, its type, and the kinds that have it where not all do."""
    owners, kinds = owned(options, path), _kinds_at(options, path)
    first, field = owners[0]
    default = field.default if len({item.default for _, item in owners}) == 1 else None  # each kind has its own
    some = [kind.kind for kind, _ in owners] if len(owners) < len(kinds) else []
    return field, default, typing.get_type_hints(first)[field.name], some


def owned(options: type[Any], path: str) -> list[tuple[Any, dataclasses.Field[Any]]]:
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


def base_of(hint: Any) -> Any:
    """The type of a value that is there."""
    return next((part for part in typing.get_args(hint) if part is not type(None)), hint)


def text_as(text: str, hint: Any, path: str) -> Any:
    """A text as the type that an option asks for."""
    kind, words = base_of(hint), words_of(hint)
    if text in words:
        return text
    try:
        return kind(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, "a text")
        name = path.rsplit(".", maxsplit=1)[-1]
        raise InputError(f"{name} is {shown(text)}; expected {or_words(expected, words)}") from None


def kinds_of(hints: Mapping[str, Any], path: str) -> list[type[Any]]:
    """The kinds that an option may be of; none where it has no kinds."""
    return option_kinds(hints[path]) if path in hints else []

"""Option objects: frozen dataclasses whose fields carry their help, built from tables and refused with a sentence."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, TypeVar

from noback.errors import InputError

T = TypeVar("T")


def option(default: Any, text: str, *, choices: Iterable[str] = ()) -> Any:
    """A dataclass field with its default and the sentence that the command line's help shows."""
    metadata = {"help": text, "choices": tuple(choices)}
    if is_dataclass(default):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def positive(name: str, value: float) -> None:
    """Refuse a number that is not above zero and finite."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value!r}; expected a number above zero")


def whole(name: str, value: int) -> None:
    """Refuse a count that is not a whole number above zero."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; expected a whole number above zero")


def not_negative(name: str, value: float) -> None:
    """Refuse a number that is below zero or not finite."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
        raise InputError(f"{name} is {value!r}; expected zero or a number above it")


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word that is not among the choices, with the nearest as a suggestion."""
    known = sorted(choices)
    if value not in known:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}{suggestion(value, known)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def build(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """An option object from a table; an unknown key or a value of the wrong type is refused."""
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"unknown option {where + key!r}{_where_else(key, kind, where)}")
        values[key] = _convert(hints[key], value, where + key)
    missing = [name for name, item in known.items() if name not in values and _required(item)]
    if missing:
        raise InputError(f"option {where + missing[0]!r} is missing")
    return kind(**values)


def _where_else(key: str, kind: type[Any], where: str) -> str:
    """A suggestion for an unknown key: the option of that very name elsewhere in the tree, or the nearest name."""
    names = {name.split(".")[-1]: where + name for name in _dotted(kind)}
    near = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _dotted(kind: type[Any], prefix: str = "") -> Iterable[str]:
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from _dotted(typing.cast("type[Any]", hints[item.name]), f"{prefix}{item.name}.")
        else:
            yield prefix + item.name


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type that `hint` asks for; whole numbers serve where a float is asked."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        accepted = typing.get_args(hint)
        if value is None and type(None) in accepted:
            return None
        return _convert(next(part for part in accepted if part is not type(None)), value, name)
    if is_dataclass(hint):
        return _convert_table(typing.cast("type[Any]", hint), value, name)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{name} is {value!r}; expected {_WORDS.get(hint, hint.__name__)}")
    return value


def _convert_table(hint: type[Any], value: Any, name: str) -> Any:
    if isinstance(value, hint):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}; expected a table of options")
    table = dict(value)
    kind = table.pop("kind", hint.kind)
    if kind != hint.kind:
        raise InputError(f"{name}.kind is {kind!r}; expected {hint.kind!r}")
    return build(hint, table, where=name + ".")


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}

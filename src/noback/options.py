"""Option objects: frozen dataclasses whose fields carry their help, built from tables and refused with a sentence."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from noback.errors import InputError, shown
from noback.inputs import check_name

T = TypeVar("T")
_MOST = 2**63 - 1  # of any count: what a machine counts to


def option(default: Any, text: str, *, choices: Iterable[str] = ()) -> Any:
    """A dataclass field with its default and the sentence that the command line's help shows."""
    metadata = {"help": text, "choices": tuple(choices)}
    if is_dataclass(default):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def positive(name: str, value: float) -> None:
    """Refuse a number that is not above zero and finite."""
    if not (_is_number(value) and value > 0):
        raise InputError(f"{name} is {shown(value)}; expected a number above zero")


def whole(name: str, value: int, most: int = _MOST) -> None:
    """Refuse a count that is not a whole number above zero, or is more than `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {shown(value)}; expected a whole number above zero")
    if value > most:
        raise InputError(f"{name} is {shown(value)}; expected a whole number above zero and at most {most:,}")


def not_negative(name: str, value: float) -> None:
    """Refuse a number that is below zero or not finite."""
    if not (_is_number(value) and value >= 0):
        raise InputError(f"{name} is {shown(value)}; expected zero or a number above it")


def _is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def check_seed(name: str, value: int, limit: int) -> None:
    """Refuse a seed that is not a whole number from 0 to `limit` - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise InputError(f"{name} is {shown(value)}; expected a whole number from 0 to {limit - 1}")


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word that is not among the choices, with the nearest as a suggestion."""
    known = sorted(choices)
    if value not in known:
        raise InputError(f"{name} is {shown(value)}; expected one of {', '.join(known)}{suggestion(str(value), known)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing."""
    near = _nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


def _nearest(word: str, known: Iterable[str]) -> str | None:
    """The nearest of the known words; none is near to a word that is far longer than any, which would take long."""
    found = difflib.get_close_matches(word, [each for each in known if len(word) <= 100], n=1)
    return found[0] if found else None


def build(kind: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """An option object from a table; an unknown key or a value of the wrong type is refused."""
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"unknown option {shown(where + key)}{_where_else(key, kind, where)}")
        values[key] = converted(hints[key], value, where + key)
    missing = [name for name, item in known.items() if name not in values and _required(item)]
    if missing:
        raise InputError(f"option {where + missing[0]!r} is missing")
    return kind(**values)


def _where_else(key: str, kind: type[Any], where: str) -> str:
    """A suggestion for an unknown key: the option of that very name elsewhere in the tree, or the nearest name."""
    names = {name.split(".")[-1]: where + name for name in _dotted(kind)}
    near = _nearest(key, names)
    return f"; did you mean {names[near]!r}?" if near else ""


def _dotted(kind: type[Any], prefix: str = "") -> Iterable[str]:
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        inner = option_kinds(hints[item.name])
        for part in inner:
            yield from _dotted(part, f"{prefix}{item.name}.")
        if not inner:
            yield prefix + item.name


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def converted(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type that `hint` asks for; whole numbers serve where a float is asked."""
    accepted = _members(hint)
    if value is None and type(None) in accepted:
        return None
    kinds = option_kinds(hint)
    if kinds:
        return _convert_table(kinds, value, name)
    words = words_of(hint)
    if isinstance(value, str) and value in words:
        return value
    plain = [typing.get_origin(part) or part for part in accepted if part is not type(None)]
    if Mapping in plain and isinstance(value, Mapping):
        return dict(value)
    hint = plain[0]
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and _is_number(value):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{name} is {shown(value)}; expected {or_words(_WORDS.get(hint, hint.__name__), words)}")
    if hint is str:
        check_name(name, value)
    return value


def _convert_table(kinds: Sequence[type[Any]], value: Any, name: str) -> Any:
    """An option object of one of the kinds, from a table that names its kind (none: the first), or from a text."""
    if isinstance(value, tuple(kinds)):
        return value
    if isinstance(value, str):
        value = table_of_text(kinds, value)
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {shown(value)}; expected a table of options")
    table = dict(value)
    kind = table.pop("kind", kinds[0].kind)
    if not isinstance(kind, str):
        raise InputError(f"{name}.kind is {shown(kind)}; expected a text")
    if kind == off_word(kinds) and not table:
        return None
    by_name = {each.kind: each for each in kinds}
    if kind not in by_name:
        one_of(name, kind, by_name if table else kind_words(kinds))
    for key in table:
        owners = [each.kind for each in kinds if key in {item.name for item in fields(each)}]
        if owners and kind not in owners:
            raise InputError(f"{name} {kind!r} has no option {name + '.' + key!r}; {name} {owners[0]!r} has it")
    return build(by_name[kind], table, where=name + ".")


def off_word(kinds: Sequence[type[Any]]) -> str | None:
    """What one may write where none of these kinds is wanted; None: nothing but leaving it out."""
    return next((kind.off for kind in kinds if hasattr(kind, "off")), None)


def kind_words(kinds: Sequence[type[Any]]) -> list[str]:
    """What may be written where a kind is asked for."""
    off = off_word(kinds)
    return [*([off] if off else []), *(kind.kind for kind in kinds)]


def table_of_text(kinds: Sequence[type[Any]], text: str) -> dict[str, Any]:
    """The table that a text stands for: a kind's name, or what a kind can make of it (`module:function`)."""
    made = (each.of_text(text) for each in kinds if hasattr(each, "of_text"))
    return next((table for table in made if table is not None), {"kind": text})


def option_kinds(hint: Any) -> list[type[Any]]:
    """The option classes that a field of this type may hold."""
    return [part for part in _members(hint) if is_dataclass(part) and isinstance(part, type)]


def words_of(hint: Any) -> list[str]:
    """The words that stand for themselves beside the type that an option asks for: `auto`."""
    return [word for part in _members(hint) if typing.get_origin(part) is Literal for word in typing.get_args(part)]


def or_words(expected: str, words: Sequence[str]) -> str:
    """What was expected, as a sentence says it, and the words that would do as well."""
    return " or ".join([expected, *words])


def _members(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}

"""The command that repeats a run, from its configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any


def command_to_repeat(config: Mapping[str, Any], flags: Mapping[str, str], command: str = "train") -> tuple[str, ...]:
    """`noback train`, or another command, and each recorded option, quoted.

    `flags` says where each flag stands in the configuration.
    """
    found = dict(_leaves(config, set(flags.values())))
    parts = [["noback", command]]
    for flag, place in flags.items():
        if place in found:
            parts.append(_flagged(flag, found.pop(place)))
    for place, value in found.items():
        parts.append(["--set", f"{place}={_toml(value)}"])
    return tuple(shlex.join(part) for part in parts)


def _leaves(table: Mapping[str, Any], named: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each option by its dotted name; a table's kind goes by the table's name where a flag says it."""
    for key, value in table.items():
        place = prefix + key
        if not isinstance(value, Mapping):
            yield place, value
            continue
        rest = {name: inner for name, inner in value.items() if name != "kind"}
        if place in named:
            kind = rest.pop("function", None) if value.get("kind") == "function" else value.get("kind")
            if kind is not None:
                yield place, kind
        yield from _leaves(rest, named, place + ".")


def _flagged(flag: str, value: Any) -> list[str]:
    text = repr(value) if isinstance(value, float) else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _toml(value: Any) -> str:
    """A value as TOML; JSON's texts, numbers, lists and booleans are TOML's."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

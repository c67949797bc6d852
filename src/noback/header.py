"""A journal's header: what must stand in it, and in what form, before anything is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from noback.errors import DamagedError
from noback.values import MOST_DIRECTIONS, MOST_STEPS

LONGEST = 2**28  # bytes; a prefix's start stands in it
_MOST_FIGURES = 16
_MOST_VALUES = 2**26  # of a readout

_KINDS: dict[str, type | tuple[type, ...]] = {
    "format": int, "config": dict, "config_digest": str, "task": dict, "base": str, "start": str, "data": str,
    "directions": int, "figures": list, "slope_unit": str, "device": str, "versions": dict, "mezo": dict,
    "start_tensors": dict, "model_config": dict, "tokenizer": dict, "generation": dict, "buffers": str, "threads": int,
    "trained_rows": str, "extended": list, "server": dict, "readout": dict,
}  # fmt: skip

_MEANT = {"readout": "words"}  # of a recorded configuration, by what it leaves out: 0.1.0 had no readouts


def parsed_header(text: bytes, where: str) -> dict[str, Any]:
    """The header of a journal; one that is not in the form that noback writes is refused."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedError(f"the header of {where} is no JSON that noback writes") from None
    if not isinstance(header, dict):
        raise DamagedError(f"the header of {where} is {_short(header)}; expected a table")
    for key, kind in _KINDS.items():
        value = header.get(key)
        if key in header and (not isinstance(value, kind) or isinstance(value, bool)):
            raise DamagedError(f"{key} in the header of {where} is {_short(value)}; expected {_WORDS[kind]}")
    _check_counts(header, where)
    return header


def ordered(header: Mapping[str, Any]) -> dict[str, Any]:
    """A header with its keys sorted, except within the task's entries: the order of its words is that of the logits."""
    table: dict[str, Any] = {key: _sorted(header[key]) for key in sorted(header)}
    if isinstance(task := header.get("task"), Mapping):
        table["task"] = {key: task[key] for key in sorted(task)}
    return table


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list | tuple) else value


def check_run(header: Mapping[str, Any], where: str) -> None:
    """Refuse a header that is no run's."""
    if "mezo" in header:
        raise DamagedError(f"{where} is an optimizer's (noback.MeZO), not a run's; open it with MeZO")
    for key in ("config", "task", "base", "data"):
        if key not in header:
            raise DamagedError(f"{where} has no {key} in its header, so it is no run's journal")


def spelled_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's configuration says, and what it means by leaving out an option whose default is another now."""
    return {**_MEANT, **config}


def steps_of(header: Mapping[str, Any]) -> int | None:
    """How many steps a run of this header takes; None of an optimizer's, which has no end."""
    steps = header.get("config", {}).get("steps")
    return steps if isinstance(steps, int) else None


def patience_of(header: Mapping[str, Any]) -> int | None:
    """How many evaluations in a row without better weights end a run of this header; None: it goes to its end."""
    patience = header.get("config", {}).get("patience")
    return patience if isinstance(patience, int) and patience > 0 else None


def readout_shape(header: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many labels and columns the values of a run's readout have; None: it has no readout."""
    shape = header.get("readout")
    return None if shape is None else (int(shape["labels"]), int(shape["columns"]))


def _check_counts(header: Mapping[str, Any], where: str) -> None:
    directions, figures = header.get("directions"), header.get("figures", [])
    if directions is None or not 1 <= directions <= MOST_DIRECTIONS:
        raise DamagedError(
            f"directions in the header of {where} is {_short(directions)}; expected 1 to {MOST_DIRECTIONS}"
        )
    if len(figures) > _MOST_FIGURES or not all(isinstance(name, str) for name in figures):
        raise DamagedError(f"figures in the header of {where} are {_short(figures)}; expected a few names")
    shape = header.get("readout", {"labels": 1, "columns": 1})
    sides = [shape.get(name) for name in ("labels", "columns")]
    counts = all(type(side) is int and 1 <= side <= _MOST_VALUES for side in sides)
    if not counts or math.prod(sides) > _MOST_VALUES:
        raise DamagedError(f"readout in the header of {where} is {_short(shape)}; expected its labels and columns")
    steps = header.get("config", {}).get("steps", 1)
    if not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise DamagedError(f"config.steps in the header of {where} is {_short(steps)}; expected 1 to {MOST_STEPS}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


_WORDS: dict[Any, str] = {int: "a whole number", str: "a text", dict: "a table", list: "a list"}

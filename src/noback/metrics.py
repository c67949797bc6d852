"""The lines of a run's metrics.jsonl: what form each has; lines of another form are left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

# Texts by a line's kind; what is neither named here nor below is a number, true or false, or null.
_TEXTS = {
    "result": ("run", "task", "metric", "objective", "weights", "final_weights", "verdict"),
    "diverged": ("found",),
    "test": ("at",),
}


def metrics_in(text: str) -> list[dict[str, Any]]:
    """Every line in the form that noback writes; one of another form, or left torn by a kill, is skipped."""
    found = []
    for line in text.splitlines():
        try:
            values = json.loads(line, parse_constant=lambda _: None)  # 0.1.0 wrote NaN where a number is none
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and isinstance(values.get("kind"), str) and _is_sound(values):
            found.append(values)
    return found


def _is_sound(line: Mapping[str, Any]) -> bool:
    texts = ("kind", *_TEXTS.get(line["kind"], ()))
    return all(
        isinstance(value, str) if key in texts else _FORMS.get(key, _is_number)(value) for key, value in line.items()
    )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)  # nor nan


def _list_of(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _table_of(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and abs(value) <= sys.float_info.max


def _is_confusion(value: Any) -> bool:
    """Counts in as many rows as columns."""
    rows = _list_of(_list_of(_is_count))(value)
    return rows and all(len(row) == len(value) and min(row) >= 0 for row in value)


def _is_mistake(value: Any) -> bool:
    """A wrong answer: its sentences, what was right, what was answered, and how sure or how good."""
    if not isinstance(value, dict) or not _list_of(_is_text)(value.get("sentences")):
        return False
    texts = all(isinstance(value.get(key), str) for key in ("gold", "answer"))
    return texts and all(_is_number(value.get(key)) for key in ("chance", "reward"))


def _is_overlap(value: Any) -> bool:
    """What the sets of a run have in common: pairs of sets with counts, and texts with two labels."""
    if not isinstance(value, dict) or not isinstance(value.get("two_labels"), int):
        return False
    shared = value.get("shared")
    return isinstance(shared, list) and all(
        isinstance(one, dict)
        and all(isinstance(one.get(key), str) for key in ("of", "within"))
        and all(isinstance(one.get(key), int) for key in ("examples", "exact", "near"))
        for one in shared
    )


_FORMS: dict[str, Callable[[Any], bool]] = {
    "labels": _list_of(_is_text),
    "evidence": _list_of(_is_text),
    "health": _list_of(_is_text),
    "warnings": _list_of(_is_text),
    "balance": _table_of(_list_of(_is_count)),
    "overlap": _is_overlap,
    "confusion": _is_confusion,
    "mistakes": _list_of(_is_mistake),
    "credits": _list_of(_is_number),
    "rates": _list_of(_is_number),
    "lengths": _list_of(_is_count),
    "losses": _list_of(_is_number),
    "tempered": _list_of(_is_number),
    "right": _list_of(_is_number),
    "answers": _list_of(_is_number),
    "chances": _list_of(_is_number),
}

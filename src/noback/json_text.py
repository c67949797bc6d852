"""JSON as every reader takes it: a number that is none (nan, infinite) is null."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any


def json_text(values: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Values as valid JSON; Python's own would write NaN and Infinity, which JSON does not have."""
    try:
        return json.dumps(values, indent=indent, sort_keys=sort_keys, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(values), indent=indent, sort_keys=sort_keys, allow_nan=False)


def number_in(table: Mapping[str, Any], key: str) -> float | None:
    """The number under a key of a table that was read; None where there is none, as in lines of older versions."""
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None  # nor where it is no number, or too large for one


def has_numbers(table: Mapping[str, Any], *keys: str) -> bool:
    """Whether there is a number under each key."""
    return all(number_in(table, key) is not None for key in keys)


def _finite(values: Any) -> Any:
    """The same with None in place of each number that is not finite."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {key: _finite(value) for key, value in values.items()}
    return [_finite(value) for value in values] if isinstance(values, list | tuple) else values

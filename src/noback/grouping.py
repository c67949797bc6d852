"""Whose directions they are: the step's, or those of groups of its examples, each of which has its own."""

from __future__ import annotations

import re

from noback.errors import InputError, shown

STEP = "step"
_FORMS = "step, example, or group:N with N examples a group, such as group:8"


def group_size(per: str) -> int | None:
    """How many examples have a direction in common; None: all of a step's."""
    if per in (STEP, "example"):
        return None if per == STEP else 1
    found = re.fullmatch(r"group:([1-9][0-9]{0,8})", per) if isinstance(per, str) else None
    if found is None:
        raise InputError(f"directions_per is {shown(per)}; expected {_FORMS}")
    return int(found[1])


def group_count(examples: int, per: str) -> int:
    """How many groups a batch has."""
    return -(-examples // (group_size(per) or examples))


def groups_of(examples: int, per: str) -> list[slice]:
    """The groups of a batch, one after the other; the last may be smaller."""
    size = group_size(per) or examples
    return [slice(first, min(first + size, examples)) for first in range(0, examples, size)]

"""What a comparison of methods is to run: the grid of a reproduction, and the budgets at which methods are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.config import read_config
from noback.errors import InputError
from noback.options import positive, whole
from noback.reproduction import Grid, grid_of

_OWN = ("forwards", "seconds")


@dataclass(frozen=True, slots=True)
class Plan:
    """A grid and the budgets; the grid's first method that trains is the one that others are compared with."""

    grid: Grid
    forwards: tuple[int, ...]  # of a batch, in training
    seconds: tuple[float, ...]

    @property
    def reference(self) -> str:
        """The method that others are compared with."""
        return self.courses[0]

    @property
    def courses(self) -> list[str]:
        """The methods that take noback's steps; of the others only the end is known."""
        return [method.name for method in self.grid.methods if method.baseline is None]

    @property
    def trials(self) -> int:
        """How many learning rates each of them tries."""
        return max(len(method.lrs) for method in self.grid.methods if method.baseline is None)


def read_plan(path: Path, *, model: str | None = None, data: str | None = None) -> Plan:
    """A plan from its TOML file; `model` and `data` take the place of the file's own."""
    return plan_of({**read_config(path), **({"model": model} if model else {}), **({"data": data} if data else {})})


def plan_of(table: Mapping[str, Any]) -> Plan:
    """A plan from its table; a missing or unknown entry is named."""
    grid = grid_of({key: value for key, value in table.items() if key not in _OWN})
    budgets = {key: table.get(key, []) for key in _OWN}
    for key, values in budgets.items():
        if not isinstance(values, list) or sorted(set(values)) != values:
            raise InputError(f"{key} of the plan is {values!r}; expected a list of budgets, each larger than the last")
        for value in values:
            whole(key, value) if key == "forwards" else positive(key, value)
    if not budgets["forwards"]:
        raise InputError("the plan names no forwards; expected the budgets at which methods are compared")
    plan = Plan(grid, tuple(budgets["forwards"]), tuple(map(float, budgets["seconds"])))
    if not plan.courses:
        raise InputError("no method of the plan takes noback's steps; expected one that is no baseline")
    for method in grid.methods:
        if method.baseline is None and len(method.lrs) != plan.trials:
            raise InputError(
                f"method {method.name!r} tries {len(method.lrs)} learning rates and another one {plan.trials}; "
                "expected the same number of trials for each"
            )
    return plan

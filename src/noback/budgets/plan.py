"""What a comparison of methods is to run: the grid of a reproduction, and the budgets at which methods are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.config import read_config
from noback.errors import InputError
from noback.options import one_of, positive, whole
from noback.reproduction import Cell, Grid, chosen_by_validation, grid_of, tried_together

_BUDGETS = ("forwards", "seconds")
LR_BY = ("seed", "task")

Key = tuple[str, str, int, int]  # method, task, shots, seed
Groups = Mapping[Key, Sequence[Cell]]  # the cells that differ in their learning rate alone


@dataclass(frozen=True, slots=True)
class Plan:
    """A grid and the budgets; the grid's first method that trains is the one that others are compared with."""

    grid: Grid
    forwards: tuple[int, ...]  # of a batch, in training
    seconds: tuple[float, ...]
    lr_by: str = "seed"  # each seed has a learning rate of its own, or a task has the one of its first seed

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

    def part(self, number: int, count: int) -> list[dict[Key, list[Cell]]]:
        """Part `number` of `count`: groups of all seeds of a method, task and number of shots; method after method."""
        groups = tried_together(self.grid)
        names = [method.name for method in self.grid.methods]
        together = sorted(dict.fromkeys(key[:3] for key in groups), key=lambda one: names.index(one[0]))
        return [
            {key: cells for key, cells in groups.items() if key[:3] == one} for one in together[number - 1 :: count]
        ]

    def first_tried(self, groups: Groups, _: Mapping[str, Any]) -> list[Cell]:
        """The cells to run first: all, or those whose validation chooses the learning rate of the others."""
        return [cell for key, cells in groups.items() if self._chooses(key) for cell in cells]

    def then_run(self, groups: Groups, ended: Mapping[str, Any]) -> list[Cell]:
        """The cells of the other seeds, each with the learning rate that was chosen."""
        found = []
        for key, cells in groups.items():
            if not self._chooses(key):
                best = chosen_by_validation(groups[*key[:3], self.grid.seeds[0]], ended)
                found += [cell for cell in cells if best is not None and cell.lr == best[0].lr]
        return found

    @property
    def planned(self) -> list[Cell]:
        """As many cells as will run, for an estimate; which learning rates will be chosen is not known yet."""
        groups = tried_together(self.grid)
        return [cell for key, cells in groups.items() for cell in (cells if self._chooses(key) else cells[:1])]

    def _chooses(self, key: Key) -> bool:
        return self.lr_by == "seed" or key[3] == self.grid.seeds[0]


def read_plan(path: Path, *, model: str | None = None, data: str | None = None) -> Plan:
    """A plan from its TOML file; `model` and `data` take the place of the file's own."""
    return plan_of({**read_config(path), **({"model": model} if model else {}), **({"data": data} if data else {})})


def plan_of(table: Mapping[str, Any]) -> Plan:
    """A plan from its table; a missing or unknown entry is named."""
    grid = grid_of({key: value for key, value in table.items() if key not in (*_BUDGETS, "lr_by")})
    budgets = {key: table.get(key, []) for key in _BUDGETS}
    for key, values in budgets.items():
        if not isinstance(values, list) or sorted(set(values)) != values:
            raise InputError(f"{key} of the plan is {values!r}; expected a list of budgets, each larger than the last")
        for value in values:
            whole(key, value) if key == "forwards" else positive(key, value)
    if not budgets["forwards"]:
        raise InputError("the plan names no forwards; expected the budgets at which methods are compared")
    lr_by = table.get("lr_by", "seed")
    one_of("lr_by", lr_by, LR_BY)
    plan = Plan(grid, tuple(budgets["forwards"]), tuple(map(float, budgets["seconds"])), lr_by)
    if not plan.courses:
        raise InputError("no method of the plan takes noback's steps; expected one that is no baseline")
    for method in grid.methods:
        if method.baseline is None and len(method.lrs) != plan.trials:
            raise InputError(
                f"method {method.name!r} tries {len(method.lrs)} learning rates and another one {plan.trials}; "
                "expected the same number of trials for each"
            )
    return plan

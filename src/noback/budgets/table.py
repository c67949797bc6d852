"""The table of a comparison: accuracy at each budget, the difference to the reference, and what reaches it sooner."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from noback.budgets.bootstrap import paired_difference
from noback.budgets.plan import Key, Plan

Courses = Mapping[Key, Mapping[str, Any]]


def summarised(plan: Plan, courses: Courses, ends: Mapping[Key, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a number of shots and method, in the order of the plan."""
    rows: list[dict[str, Any]] = []
    for shots in plan.grid.shots:
        for method in plan.grid.methods:
            if method.baseline is not None:
                rows.append(_end_row(plan, ends, method.name, shots if method.trains else plan.grid.shots[0], shots))
            else:
                rows.append(_course_row(plan, courses, ends, method.name, shots))
    return rows


def _end_row(plan: Plan, ends: Mapping[Key, Mapping[str, Any]], method: str, drawn: int, shots: int) -> dict[str, Any]:
    """A yardstick: where it ended, whatever it took."""
    tasks = {}
    for task in plan.grid.tasks:
        found = [
            100 * float(ends[key]["test"]) for seed in plan.grid.seeds if (key := (method, task, drawn, seed)) in ends
        ]
        tasks[task] = {"end": _mean(found), "seeds": len(found)}
    runs, planned = _runs(tasks), len(plan.grid.tasks) * (len(plan.grid.seeds) if _trains(plan, method) else 1)
    end = _whole_mean(runs, planned, _ends(tasks))
    return {
        "method": method, "shots": shots, "yardstick": True, "tasks": tasks, "runs": runs, "planned": planned,
        "end": end,
    }  # fmt: skip


def _course_row(
    plan: Plan, courses: Courses, ends: Mapping[Key, Mapping[str, Any]], method: str, shots: int
) -> dict[str, Any]:
    tasks = {}
    for task in plan.grid.tasks:
        keys = [key for seed in plan.grid.seeds if (key := (method, task, shots, seed)) in courses]
        entry: dict[str, Any] = {"seeds": len(keys), "lrs": [ends[key]["lr"] for key in keys]}
        for kind, budgets in _budgets(plan).items():
            entry[kind] = [
                _mean([_accuracy(courses[key], kind, place) for key in keys]) for place in range(len(budgets))
            ]
        tasks[task] = entry
    row: dict[str, Any] = {"method": method, "shots": shots, "yardstick": False, "tasks": tasks, "runs": _runs(tasks)}
    row["planned"] = len(plan.grid.tasks) * len(plan.grid.seeds)
    for kind, budgets in _budgets(plan).items():
        columns = [[entry[kind][place] for entry in tasks.values()] for place in range(len(budgets))]
        row[kind] = [_whole_mean(row["runs"], row["planned"], column) for column in columns]
        row[f"{kind}_difference"] = [
            _difference(plan, courses, method, shots, (kind, place)) for place in range(len(budgets))
        ]
    row["reaches_reference_at"] = _reached(plan, courses, method, shots)
    return row


def _runs(tasks: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(int(entry["seeds"]) for entry in tasks.values())


def _ends(tasks: Mapping[str, Mapping[str, Any]]) -> list[float | None]:
    return [entry["end"] for entry in tasks.values()]


def _trains(plan: Plan, method: str) -> bool:
    return next(one.trains for one in plan.grid.methods if one.name == method)


def _whole_mean(runs: int, planned: int, values: Sequence[float | None]) -> float | None:
    """The mean over all tasks; none while runs are missing: of other tasks it would be no figure to compare."""
    known = [value for value in values if value is not None]
    return _mean(known) if runs == planned else None


def _budgets(plan: Plan) -> dict[str, Sequence[float]]:
    return {"forwards": plan.forwards, "seconds": plan.seconds}


def _right(course: Mapping[str, Any], kind: str, place: int) -> list[int]:
    """How each test example was answered at a budget."""
    found: list[int] = course["right"][str(course["steps"][kind][place])]
    return found


def _accuracy(course: Mapping[str, Any], kind: str, place: int) -> float:
    return 100 * statistics.mean(_right(course, kind, place))


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.mean(values), 2) if values else None


def _difference(plan: Plan, courses: Courses, method: str, shots: int, at: tuple[str, int]) -> list[float] | None:
    """The paired difference to the reference at a budget, over the seeds that both have ended: mean, low, high."""
    if method == plan.reference:
        return None
    found: dict[str, list[list[float]]] = {}
    for task in plan.grid.tasks:
        for seed in plan.grid.seeds:
            pair = [courses.get((name, task, shots, seed)) for name in (method, plan.reference)]
            if pair[0] is not None and pair[1] is not None:
                mine, other = (_right(one, *at) for one in pair if one is not None)
                found.setdefault(task, []).append([a - b for a, b in zip(mine, other, strict=True)])
    return list(paired_difference(found)) if found else None


def _reached(plan: Plan, courses: Courses, method: str, shots: int) -> int | None:
    """The smallest budget of forwards at which the mean over tasks is the reference's at its largest; None: at none."""
    pairs = [
        (courses[method, task, shots, seed], courses[plan.reference, task, shots, seed])
        for task in plan.grid.tasks
        for seed in plan.grid.seeds
        if (method, task, shots, seed) in courses and (plan.reference, task, shots, seed) in courses
    ]
    if not pairs:
        return None
    if len(pairs) < len(plan.grid.tasks) * len(plan.grid.seeds):
        return None
    goal = statistics.mean(_accuracy(other, "forwards", len(plan.forwards) - 1) for _, other in pairs)
    for place, budget in enumerate(plan.forwards):
        if statistics.mean(_accuracy(mine, "forwards", place) for mine, _ in pairs) >= goal:
            return budget
    return None


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown: means over the tasks, and the difference to the reference with its 95 % interval."""
    plan = table["plan"]
    reference = next(one["name"] for one in plan["grid"]["methods"] if one["baseline"] is None)
    lines = [
        f"{plan['grid']['model']}: test accuracy in percent, mean over {', '.join(plan['grid']['tasks'])} and seeds "
        f"{', '.join(map(str, plan['grid']['seeds']))}; in brackets the difference to {reference} (95 % interval)."
    ]
    for kind, unit in (("forwards", "forwards"), ("seconds", "s")):
        if plan[kind]:
            heads = ["method", "k", *(f"{budget:g} {unit}" for budget in plan[kind])]
            heads += [f"reaches {reference}'s last at"] * (kind == "forwards")
            lines += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
            lines += [f"| {' | '.join(_cells(row, kind, len(plan[kind])))} |" for row in table["rows"]]
    lines += [f"- {name}: {gap}" for name, gap in table["gaps"].items()]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any], kind: str, budgets: int) -> list[str]:
    if row["yardstick"]:
        cells = [*["-"] * (budgets - 1), f"{_shown(row['end'])} at its end"]
        return [_named(row), str(row["shots"]), *cells, *["-"] * (kind == "forwards")]
    pairs = zip(row[kind], row[f"{kind}_difference"], strict=True)
    cells = [_shown(mean) + (f" ({d[0]:+.1f}: {d[1]:+.1f} to {d[2]:+.1f})" if d else "") for mean, d in pairs]
    reached = row["reaches_reference_at"]
    last = str(reached or ("never" if row["runs"] == row["planned"] else "-"))
    return [_named(row), str(row["shots"]), *cells, *[last] * (kind == "forwards")]


def _named(row: Mapping[str, Any]) -> str:
    """The method, and how far it is where runs are missing; its differences are then of those that have ended."""
    missing = row["runs"] < row["planned"]
    return f"{row['method']} ({row['runs']} of {row['planned']} runs)" if missing else str(row["method"])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

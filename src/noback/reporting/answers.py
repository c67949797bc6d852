"""How a run answers: its confusion matrix, its worst mistakes, and whether it says one label to everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from noback.counts import one_answer_warning
from noback.reporting.blocks import Cell, Note, Table
from noback.reporting.formats import figure, figure_in, percent, short
from noback.reporting.reading import ReadRun

_BEFORE = "test, before"

Confusion = list[list[int]]


@dataclass(frozen=True, slots=True)
class Majority:
    """The answer given most often to a set, and how large the largest label of that set is."""

    where: str
    label: str
    share: float
    gold_share: float
    warning: str | None  # where nearly every answer is that one


def confusion_in(line: Mapping[str, Any]) -> Confusion | None:
    """A line's confusion matrix, if it has a sound one."""
    table = line.get("confusion")
    if not isinstance(table, list) or not table:
        return None
    is_sound = all(isinstance(row, list) and len(row) == len(table) for row in table)
    return table if is_sound and all(isinstance(count, int) for row in table for count in row) else None


def named(labels: list[str], index: int) -> str:
    """A label's text, or its number where the run does not say it."""
    return labels[index] if index < len(labels) else str(index)


def confusion_table(table: Confusion, labels: list[str]) -> Table:
    """Gold labels as rows, answers as columns; a cell is tinted by its share of its row."""
    rows = []
    for gold, counts in enumerate(table):
        total = sum(counts)
        cells = [
            Cell(f"{count:,}", count, f"confusion-{gold}-{answer}", count / total if total else None, numeric=True)
            for answer, count in enumerate(counts)
        ]
        recall = figure(counts[gold] / total if total else None, percent, f"recall-{gold}")
        rows.append((Cell(named(labels, gold)), *cells, figure(total), recall))
    head = ("gold \\ answer", *(named(labels, index) for index in range(len(table))), "all", "answered right")
    return Table(head, tuple(rows), first_is_head=True)


def majorities(run: ReadRun) -> list[Majority]:
    """The most frequent answer wherever a confusion matrix is known."""
    evaluations = run.evaluations()
    places = [
        (_BEFORE, run.last("zero_shot")), ("test, best", run.last("test", at="best")),
        ("test, last", run.last("test", at="final")), ("validation, newest", evaluations[-1] if evaluations else {}),
    ]  # fmt: skip
    found = []
    for where, line in places:
        table = confusion_in(line)
        total = sum(map(sum, table)) if table else 0
        if table and total:
            answered = [sum(row[index] for row in table) for index in range(len(table))]
            most = max(answered)
            label = named(run.labels, answered.index(most))
            said = one_answer_warning(table, run.labels, f"set ({where})")
            found.append(Majority(where, label, most / total, max(map(sum, table)) / total, said))
    return found


def majority_table(found: Iterable[Majority]) -> Table:
    """The most frequent answers, one row a set."""
    rows = [
        (Cell(one.where), Cell(one.label), figure(one.share, percent, f"majority-{one.where}"),
         figure(one.gold_share, percent))
        for one in found
    ]  # fmt: skip
    return Table(
        ("set", "most frequent answer", "share of the answers", "largest label"), tuple(rows),
        "Most frequent answer", first_is_head=True,
    )  # fmt: skip


def majority_warnings(found: Iterable[Majority]) -> tuple[Note, ...]:
    """A plain warning where tuned weights answer one label to nearly everything."""
    said = ". ".join(one.warning for one in found if one.warning and one.where != _BEFORE)
    return (Note(f"The model answers one label to nearly everything: {said}.", warns=True),) if said else ()


def mistakes_table(run: ReadRun) -> Table | None:
    """The wrong answers that the model was surest of; of rewarded ones, those with the least reward."""
    key, shown = ("reward", short) if run.has_reward else ("chance", percent)
    mistakes = run.last("mistakes").get("mistakes")
    rows = [
        (figure_in(one, key, shown), Cell(str(one.get("gold", ""))), Cell(str(one.get("answer", ""))),
         Cell(" / ".join(map(str, one.get("sentences") or ()))))
        for one in (mistakes if isinstance(mistakes, list) else [])
        if isinstance(one, dict)
    ]  # fmt: skip
    return (
        Table(("reward" if run.has_reward else "probability", "gold", "answer", "text"), tuple(rows)) if rows else None
    )

"""The mean reward of the test set before and after, where a reward judges what is written."""

from __future__ import annotations

from typing import NamedTuple

from noback.json_text import number_in
from noback.reporting.blocks import Cell, Section, Stat, Stats, Table
from noback.reporting.formats import figure_in
from noback.reporting.reading import ReadRun

BEFORE, BEST, LAST = "before", "best", "last"


class Rewarded(NamedTuple):
    """The rewards of some weights."""

    name: str
    title: str
    line: dict[str, object]

    def cell(self, prefix: str) -> Cell:
        """The mean reward."""
        return figure_in(self.line, "score", "{:.3f}".format, f"{prefix}{self.name}")


def rewarded(run: ReadRun) -> list[Rewarded]:
    """Before, with the best weights by validation, and with the last ones."""
    return [
        Rewarded(BEFORE, "before", run.last("zero_shot")),
        Rewarded(BEST, "after, best by validation", run.last("test", at="best")),
        Rewarded(LAST, "after, last step", run.last("test", at="final")),
    ]


def reward_section(run: ReadRun) -> Section:
    """The mean rewards as large figures and as a table; what is not known is left out."""
    found = [one for one in rewarded(run) if number_in(one.line, "score") is not None]
    if not found:
        return Section("Test reward", ())
    rows = tuple(
        (Cell(one.title), figure_in(one.line, "step"), one.cell("table-reward-"), figure_in(one.line, "examples"))
        for one in found
    )
    table = Table(("weights", "step", "mean reward", "texts"), rows, first_is_head=True)
    return Section("Test reward", (Stats(tuple(_stat(one, found[0]) for one in found)), table), in_summary=True)


def _stat(one: Rewarded, before: Rewarded) -> Stat:
    reward, first = number_in(one.line, "score") or 0.0, number_in(before.line, "score") or 0.0
    change = f"{reward - first:+.3f}" if before.name == BEFORE and one is not before else ""
    return Stat(one.title.capitalize(), one.cell("reward-"), "mean reward, higher is better", change)

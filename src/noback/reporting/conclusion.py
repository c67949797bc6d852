"""What a comparison says in words: which objective won, how sure one may be of it, and which answers changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noback.counts import mcnemar, paired_difference, wilson
from noback.json_text import number_in
from noback.reporting.blocks import Cell, Judgement, Table
from noback.reporting.formats import NOTHING, figure, percent

_UNLIKELY = 0.05  # a chance below it, shared among the others that are compared, tells two objectives apart


@dataclass(frozen=True, slots=True)
class Answered:
    """How the test set was answered under one objective."""

    title: str
    name: str
    share: float  # right answers with the best weights
    examples: int
    before: Mapping[str, Any]  # the line of the base weights
    after: Mapping[str, Any]  # the line of the best weights


@dataclass(frozen=True, slots=True)
class _Paired:
    """Two sets of answers to the same examples."""

    only_first: int  # right there, wrong in the second
    only_second: int
    examples: int

    @property
    def chance(self) -> float:
        return mcnemar(self.only_first, self.only_second)

    def said(self) -> str:
        """The difference with its interval."""
        interval = paired_difference(self.only_first, self.only_second, self.examples)
        shares = ((self.only_first - self.only_second) / self.examples, interval.low, interval.high)
        points, low, high = (round(100 * share, 1) + 0.0 for share in shares)  # no -0.0
        return f"{points:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"


def conclusion(tested: Sequence[Answered]) -> Judgement | None:
    """Which objective is best and which cannot be told from it; None where fewer than two were tested."""
    if len(tested) < 2:
        return None
    first, *others = sorted(tested, key=lambda one: -one.share)
    told = [_told_apart(first, other, _UNLIKELY / len(others)) for other in others]
    near = [other.title for other, (apart, _) in zip(others, told, strict=True) if not apart]
    if not near:
        word = f"{first.title} is best"
    elif len(near) == len(others):
        word = f"{_listed([first.title, *near])} cannot be told apart"
    else:
        word = f"{first.title} leads, but cannot be told apart from {_listed(near)}"
    lead = f"{first.title}: {percent(first.share)} of {first.examples:,} test examples right with its best weights"
    return Judgement(word, (lead, *(sentence for _, sentence in told), *_gain(first)))


def _told_apart(first: Answered, other: Answered, limit: float) -> tuple[bool, str]:
    """Whether chance alone is unlikely to part two objectives, and the sentence that says so."""
    title, paired = f"{other.title}: {percent(other.share)}", _paired(first.after, other.after)
    if paired is None:
        ours, theirs = (wilson(one.share, one.examples) for one in (first, other))
        apart = ours.low > theirs.high
        return apart, (
            f"{title}; the 95% intervals {'do not overlap' if apart else 'overlap'} "
            "(the answers one by one were not recorded)"
        )
    apart = paired.chance < limit
    counts = f"{first.title} alone is right on {paired.only_first:,}, {other.title} alone on {paired.only_second:,}"
    verb = "told apart" if apart else "cannot be told apart"
    chance = f"p = {_chance(paired)}, needed below {limit:.2g}"
    level = paired.only_first == paired.only_second
    ahead = "has as many right" if level else f"is ahead by {paired.said()}"
    return apart, f"{title}; {first.title} {ahead}; {counts} ({chance}): {verb}"


def _gain(one: Answered) -> list[str]:
    """Whether the leader is better than the weights it began with."""
    paired = _paired(one.after, one.before)
    if paired is None:
        return []
    verb = "more than chance gives" if paired.chance < _UNLIKELY else "no more than chance may give"
    return [f"{one.title} against the weights before training: {paired.said()} (p = {_chance(paired)}), {verb}"]


def _paired(first: Mapping[str, Any], second: Mapping[str, Any]) -> _Paired | None:
    rights = [_numbers(line, "right") for line in (first, second)]
    if not rights[0] or len(rights[0]) != len(rights[1]):
        return None
    pairs = list(zip(*rights, strict=True))
    return _Paired(sum(a > b for a, b in pairs), sum(a < b for a, b in pairs), len(pairs))


def flips_table(tested: Sequence[Answered]) -> Table | None:
    """How many answers changed between before and after, which way, and how sure the changed ones were."""
    rows = tuple(_flips(one) for one in tested if _numbers(one.before, "answers") and _numbers(one.after, "answers"))
    head = (
        "objective", "answers that changed", "wrong to right", "right to wrong", "how sure before", "how sure after",
        "how sure, unchanged answers",
    )  # fmt: skip
    caption = "Answers that training changed; how sure: the mean probability of the answer that was given"
    return Table(head, rows, caption, first_is_head=True) if rows else None


def _flips(one: Answered) -> tuple[Cell, ...]:
    keys = ("answers", "right", "chances")
    before, after = (
        list(zip(*(_numbers(line, key) for key in keys), strict=False)) for line in (one.before, one.after)
    )
    pairs = list(zip(before, after, strict=False))
    changed = [(old, new) for old, new in pairs if old[0] != new[0]]
    kept = [new[2] for old, new in pairs if old[0] == new[0]]
    to_right, to_wrong = (sum(step * (new[1] - old[1]) > 0 for old, new in changed) for step in (1, -1))
    share = f"{len(changed):,} of {len(pairs):,} ({percent(len(changed) / len(pairs))})" if pairs else NOTHING
    return (
        Cell(one.title), Cell(share, len(changed), f"{one.name}-flips", numeric=True),
        figure(to_right, name=f"{one.name}-to-right"), figure(to_wrong, name=f"{one.name}-to-wrong"),
        figure(_mean([old[2] for old, _ in changed]), percent, f"{one.name}-sure-before"),
        figure(_mean([new[2] for _, new in changed]), percent, f"{one.name}-sure-after"),
        figure(_mean(kept), percent),
    )  # fmt: skip


def _numbers(line: Mapping[str, Any], key: str) -> list[float]:
    """The list of numbers under a key; nothing where there is none, or where one of them is missing."""
    values = line.get(key)
    known = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return list(values) if known and isinstance(values, list) else []


def answered_of(
    title: str, name: str, row: Mapping[str, Any], lines: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Answered | None:
    """A row of a comparison and its run's lines before and after; None where its accuracy is not known."""
    share = next((share for key in ("best", "after") if (share := number_in(row, key)) is not None), None)
    examples = number_in(row, "examples")
    if share is None or not examples or not 0 <= share <= 1:
        return None
    return Answered(title, name, share, int(examples), *lines)


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _chance(paired: _Paired) -> str:
    return f"{paired.chance:.2g}"

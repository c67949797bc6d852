"""What counts of right and wrong answers say: metrics of a confusion matrix, Wilson's interval, McNemar's test.

A confusion matrix has a row for each gold label and a column for each answer. Standard library only: the report and
the command line read it without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Confusion = Sequence[Sequence[int]]

NEARLY_ALL = 0.95  # a share of one answer from here on is warned of
_MORE = 0.25  # so is one that is larger by so much than the largest label
_TELLS_APART = 0.5  # Matthews' correlation from which on answers tell the labels apart
_TAIL = 0.025  # of a 95 % interval, on each side
_NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`."""

    low: float
    high: float


def wilson(share: float, examples: float) -> Interval:
    """Wilson's 95 % interval of a share that was counted over `examples` (above zero)."""
    square = _NORMAL_95**2
    middle = (share + square / (2 * examples)) / (1 + square / examples)
    spread = math.sqrt(max(share * (1 - share), 0.0) / examples + square / (4 * examples**2))
    half = _NORMAL_95 / (1 + square / examples) * spread
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def mcnemar(to_right: int, to_wrong: int) -> float:
    """How likely so uneven a change of answers, or a more uneven one, is by chance: the exact test, two-sided."""
    return min(1.0, 2 * upper_tail(to_right + to_wrong, max(to_right, to_wrong)))


def upper_tail(throws: int, heads: int) -> float:
    """The chance of so many heads or more in throws of a fair coin, exactly; 100,000 throws take a second."""
    ways = total = math.comb(throws, heads)
    for count in range(heads, throws):
        ways = ways * (throws - count) // (count + 1)
        total += ways
    return float(total / 2**throws)


def paired_difference(only_first: int, only_second: int, examples: int) -> Interval:
    """The 95 % interval of the difference of two shares of right answers to the same examples.

    `only_first`: examples that the first alone has right. Exact, given how many the two answer differently (Clopper
    and Pearson), so that it leaves zero out where `mcnemar` is below 0.05.
    """
    changed = only_first + only_second
    low = 1 - _highest(only_second, changed)
    return Interval(*((2 * share - 1) * changed / examples for share in (low, _highest(only_first, changed))))


def _highest(hits: int, of: int) -> float:
    """The largest share at which `hits` or fewer still have a chance of 2.5 %."""
    if hits == of:
        return 1.0
    logs = [math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1) for count in range(hits + 1)]
    low, high = hits / of, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        yes, no = math.log(middle), math.log1p(-middle)
        tail = sum(math.exp(log + count * yes + (of - count) * no) for count, log in enumerate(logs))
        low, high = (middle, high) if tail > _TAIL else (low, middle)
    return low


def macro_f1(table: Confusion) -> float:
    """The mean F1 of the labels; one that neither the answers nor the examples hold is left out."""
    hits, answered, there = _by_label(table)
    both = [one + other for one, other in zip(answered, there, strict=True)]
    return _mean([2 * hit / count for hit, count in zip(hits, both, strict=True) if count])


def balanced_accuracy(table: Confusion) -> float:
    """The mean share of right answers of the labels that are there: one answer to everything gives 1 / labels."""
    hits, _, there = _by_label(table)
    return _mean([hit / count for hit, count in zip(hits, there, strict=True) if count])


def mcc(table: Confusion) -> float:
    """Matthews' correlation, of any number of labels (Gorodkin, 2004): 0 for one answer to everything."""
    hits, answered, there = _by_label(table)
    total = sum(there)
    by_chance = sum(one * other for one, other in zip(answered, there, strict=True))
    spreads = [total**2 - sum(count**2 for count in counts) for counts in (answered, there)]
    scale = spreads[0] * spreads[1]
    return (sum(hits) * total - by_chance) / math.sqrt(scale) if scale else 0.0


FIGURES = {"macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy, "mcc": mcc}


def figures_of(table: Confusion) -> dict[str, float]:
    """The metrics that count every label alike, by their names."""
    return {name: figure(table) for name, figure in FIGURES.items()}


@dataclass(frozen=True, slots=True)
class Majority:
    """The answer given most often to a set, and how large the largest label of that set is."""

    label: int
    share: float
    gold_share: float


def majority(table: Confusion) -> Majority:
    """The most frequent answer; the matrix counts one example at least."""
    _, answered, there = _by_label(table)
    most = max(answered)
    return Majority(answered.index(most), most / sum(there), max(there) / sum(there))


def one_answer_warning(table: Confusion | None, labels: Sequence[str], where: str) -> str | None:
    """A sentence where the answers are nearly all one label and say little else; None where they are not.

    Where a set is nearly all one label, right answers are too: those that tell the labels apart are not warned of.
    """
    if table is None or not is_sound(table) or mcc(table) >= _TELLS_APART:
        return None
    most, figures = majority(table), figures_of(table)
    if most.share < min(most.gold_share + _MORE, NEARLY_ALL):
        return None
    name = labels[most.label] if most.label < len(labels) else str(most.label)
    return (
        f"the model answers {name!r} to {most.share:.0%} of the {where}, though no label is more than "
        f"{most.gold_share:.0%} of it; counting every label alike: macro F1 {figures['macro_f1']:.3f}, "
        f"balanced accuracy {figures['balanced_accuracy']:.1%}, MCC {figures['mcc']:.2f}"
    )


def one_answer_score(table: Confusion, metric: str) -> float | None:
    """What the best of all models that answer one label to everything scores; None where the metric is no count."""
    judge = _METRICS.get(metric)
    if judge is None or not is_sound(table):
        return None
    there, labels = [sum(row) for row in table], range(len(table))
    return max(judge([[count * (label == answer) for label in labels] for count in there]) for answer in labels)


def is_sound(table: Confusion) -> bool:
    """Whether a matrix is square and counts an example."""
    return bool(table) and all(len(row) == len(table) for row in table) and sum(map(sum, table)) > 0


def _accuracy(table: Confusion) -> float:
    hits, _, there = _by_label(table)
    return sum(hits) / sum(there)


def _f1(table: Confusion) -> float:
    """F1 of the last label that is there: the positive one of a task with two labels."""
    hits, answered, there = _by_label(table)
    positive = max(label for label, count in enumerate(there) if count)
    return 2 * hits[positive] / (answered[positive] + there[positive])


_METRICS: dict[str, Callable[[Confusion], float]] = {
    "accuracy": _accuracy, "f1": _f1, "macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy, "mcc": mcc,
}  # fmt: skip


def _by_label(table: Confusion) -> tuple[list[int], list[int], list[int]]:
    """For each label: right answers, answers, examples."""
    hits = [row[label] for label, row in enumerate(table)]
    return hits, [sum(column) for column in zip(*table, strict=True)], [sum(row) for row in table]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

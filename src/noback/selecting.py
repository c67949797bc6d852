"""Which evaluation has the best weights: by the score where it can tell two apart, else by the loss, then the later.

A small validation set gives some evaluation a high score by chance. So a score counts only where the answers, compared
example by example, differ by more than chance does; where they do not, the loss says more than the score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from noback.journal import Contents, Evaluation, rounded
from noback.json_text import has_numbers
from noback.paired import PerExample, chance_of_gain
from noback.verdict import evaluations, per_example_of

_CHANCE = 0.05  # of the paired test between two evaluations


class Candidate(NamedTuple):
    """An evaluation as it is compared with others."""

    loss: float
    examples: PerExample


def is_better(found: Candidate, best: Candidate) -> bool:
    """Whether the weights of a later evaluation take the place of the best so far."""
    if chance_of_gain(best.examples.credits, found.examples.credits) < _CHANCE:
        return True
    if chance_of_gain(found.examples.credits, best.examples.credits) < _CHANCE:
        return False
    return found.loss <= best.loss


def told(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> set[int]:
    """The steps whose lines are those of the journal's evaluations, with how each example was answered."""
    records = {one.step: one for one in contents.evaluations}
    lines = {int(line["step"]): line for line in evaluations(metrics) if has_numbers(line, "loss")}
    whole = {step: line for step, line in lines.items() if step in records and per_example_of(line) is not None}
    return {step for step, line in whole.items() if _is_of(line, records[step])}


def _is_of(line: Mapping[str, Any], record: Evaluation) -> bool:
    told = rounded(line["score"], line["loss"], record.step, chosen=record.chosen, readout=record.readout)
    return told == record

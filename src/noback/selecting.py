"""Which evaluation has the best weights: by the score where it can tell two apart, else by the loss, then the later.

A small validation set gives some evaluation a high score by chance. So a score counts only where the answers, compared
example by example, differ by more than chance does; where they do not, the loss says more than the score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from noback.journal import Contents
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


def best_so_far(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> Candidate | None:
    """The best evaluation of a run that goes on; None where there is none yet."""
    best = contents.best()
    lines = {int(line["step"]): line for line in evaluations(metrics)}
    line = lines.get(best.step) if best else None
    examples = per_example_of(line) if line else None
    return Candidate(float(line["loss"]), examples) if line and examples else None

"""The course of a run, read from its folder: the loss of each step and every evaluation."""

from __future__ import annotations

import os
from typing import NamedTuple

from noback.folder import RunFolder
from noback.journal import read_journal
from noback.verdict import evaluations


class StepLoss(NamedTuple):
    """A step: how many were taken with it, and the mean loss of the points at which it was measured."""

    step: int
    loss: float


class Evaluated(NamedTuple):
    """An evaluation on the validation set after `step` steps."""

    step: int
    score: float  # by the run's metric, higher is better
    loss: float
    accuracy: float | None  # None: a reward judges the answers, or the line is lost from metrics.jsonl
    seconds: float | None  # of the run up to there


class History(NamedTuple):
    """The course of a run; either list is what `pandas.DataFrame` or a plot takes."""

    steps: list[StepLoss]
    evaluations: list[Evaluated]


def read_history(run: str | os.PathLike[str]) -> History:
    """Every step and every evaluation that a run's journal holds, with what its metrics add."""
    folder = RunFolder(run)
    folder.check()
    contents = read_journal(folder.journal)
    told = {int(line["step"]): line for line in evaluations(folder.read_metrics())}
    return History(
        [StepLoss(record.step + 1, record.loss) for record in contents.steps],
        [
            Evaluated(one.step, one.score, one.loss, line.get("accuracy"), line.get("seconds"))
            for one in contents.evaluations
            for line in [told.get(one.step, {})]
        ],
    )

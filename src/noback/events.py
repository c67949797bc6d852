"""What a callback is told while a run goes: each step and each evaluation, and the way to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.errors import InputError, shown
from noback.values import Estimate, Score
from noback.watching import Silent


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run; `stop()` asks the run to leave off before its next step."""

    kind: str  # "step" or "evaluation"
    step: int  # steps taken so far
    steps: int  # of the whole run
    loss: float  # of a step: the mean at its points; of an evaluation: cross-entropy on the validation set
    score: float | None  # of an evaluation, by the run's metric
    accuracy: float | None  # of an evaluation
    stop: Callable[[], None]


Callback = Callable[[Event], object]


class Calling(Silent):
    """A watcher that calls a function with each step and evaluation."""

    def __init__(self, callback: Callback) -> None:
        if not callable(callback):
            raise InputError(f"callback is {shown(callback)}; expected a function of an Event")
        self.stopped = False
        self._callback = callback
        self._steps = 0

    def began(self, folder: Path, config: Mapping[str, Any], step: int) -> None:  # noqa: ARG002
        """A run begins: from its configuration, how long it is."""
        self._steps = int(config["steps"])

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """A step was taken."""
        self._callback(Event("step", step, steps, estimate.loss, None, None, self._stop))

    def evaluated(self, step: int, score: Score) -> None:
        """The validation set was evaluated."""
        self._callback(Event("evaluation", step, self._steps, score.loss, score.score, score.accuracy, self._stop))

    def _stop(self) -> None:
        self.stopped = True

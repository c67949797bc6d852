"""Trials: the first steps of a run at some learning rate, taken from its base weights and judged on held-out examples.

Nothing of a trial is recorded and nothing is left of it: the weights come back from a copy. A trial that goes on makes
its moves again from its slopes, so all of them need one copy of what is tuned.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from noback.config import RunConfig
from noback.errors import Interrupted, NoNumbers
from noback.evaluating import objective_parts
from noback.journal import EpsChange, StepRecord
from noback.measuring import measure
from noback.refitting import fit, fit_steps
from noback.replaying import CHUNK, move_at, step_length
from noback.run import Run, take_options
from noback.stepping import eps_after
from noback.values import MOST_STEPS, direction_seeds
from noback.watching import Silent

HELD_OUT = 256  # validation examples that judge a trial, at most
_PARTS = 32  # in so many parts, whose losses show the noise of their mean
_RISEN, _LAST = 4.0, 5  # times the larger of the first step's loss and the base's; the last steps, by their mean

# Times the length of all weights: a step that goes so far leaves nothing of them, whatever the loss says. A base model
# that is sure of wrong answers has a higher loss than one that knows nothing.
_FAR = 3.0


@dataclass(slots=True)
class Trial:
    """What is kept of one: its slopes, and the held-out losses after so many steps, a number a part."""

    lr: float
    records: list[StepRecord] = field(default_factory=list)
    changes: list[EpsChange] = field(default_factory=list)
    losses: dict[int, list[float]] = field(default_factory=dict)
    lost: bool = False  # whether its losses rose out of sight, or ceased to be numbers

    @property
    def last(self) -> tuple[int, float | None]:
        """Its steps, and the held-out loss after them; None of one that is lost."""
        return len(self.records), None if self.lost else statistics.mean(self.losses[max(self.losses)])


class Trials:
    """Takes trials with a run's model; `restore` leaves the run as it was before the first."""

    def __init__(self, run: Run, stop: Callable[[], bool]) -> None:
        self._run, self._stop = run, stop
        self._config, self._watcher = run.config, run.watcher
        # In memory, not on the device: a GPU has room for the model and what a step takes.
        self._start = {name: tensor.to("cpu", copy=True) for name, tensor in run.weights.tensors.items()}
        self._steps = self._looks = self._fit = 0  # what was done, for the count of forwards
        run.watcher = Silent()  # a trial's own bars would take turns with that of the screening
        if run.readout is not None and 0 in fit_steps(run.config):
            given, _ = fit(run, run.readout)
            self._fit = math.ceil(len(given.gold) / run.config.batch)
        self.base, self._norm = self._judged(), run.weights.norm()

    def go_on(self, trial: Trial, steps: int, tell: Callable[[int], None]) -> None:
        """Let a trial have taken so many steps, and judge it; one that is lost stays so."""
        run = self._run
        if trial.lost or steps in trial.losses:
            return
        take_options(run, tried(self._config, trial.lr))
        run.weights.load(self._start)
        self._advance(trial, 0, len(trial.records))
        try:
            while len(trial.records) < steps and not has_risen(trial.records, statistics.mean(self.base)):
                if run.world.answer_of_first(self._stop()):
                    raise Interrupted("stopped while the learning rate was sought: no run has begun; start it again")
                self._step(trial)
                tell(len(trial.records))
            judged = self._judged() if not has_risen(trial.records, statistics.mean(self.base)) else [math.inf]
        except NoNumbers:
            judged = [math.nan]
        trial.lost = not all(map(math.isfinite, judged))
        if not trial.lost:
            trial.losses[steps] = judged

    def restore(self) -> None:
        """Leave the run's weights, readout, options and watcher as they were."""
        run = self._run
        run.weights.load(self._start)
        if run.readout is not None:
            run.readout.rows.load(b"")
        take_options(run, self._config)
        run.watcher = self._watcher

    @property
    def forwards(self) -> int:
        """Forwards of a batch that were taken so far."""
        run, size = self._run, self._run.config.batch
        held_out = math.ceil(min(run.task.size("validation"), HELD_OUT) / size)
        return self._steps * run.config.estimator.forwards + self._looks * held_out + self._fit

    def _step(self, trial: Trial) -> None:
        """Measure a step at a trial's weights and move them, as a run does."""
        run, step = self._run, len(trial.records)
        before, eps = eps_after(run.config, trial.records, trial.changes)
        if eps != before:
            trial.changes.append(EpsChange(step, eps))
        self._steps += 1
        found = measure(run, step, eps).estimate
        if not all(map(math.isfinite, (found.loss, *found.slopes, *found.figures))):
            raise NoNumbers("a loss of a trial")
        trial.records.append(StepRecord(step, found.loss, found.slopes, found.figures))
        if step_length(run, move_at(run, trial.records, step)) > _FAR * self._norm:
            raise NoNumbers("a step of a trial is longer than all weights together")
        self._advance(trial, step, step + 1)

    def _advance(self, trial: Trial, first: int, end: int) -> None:
        """Make the moves of some of a trial's records."""
        for begin in range(first, end, CHUNK):
            moves = [move_at(self._run, trial.records, step) for step in range(begin, min(begin + CHUNK, end))]
            self._run.weights.advance(moves)

    def _judged(self) -> list[float]:
        """The objective on parts of the held-out examples, rank 0's where there are several."""
        self._looks += 1
        losses = objective_parts(self._run, "validation", HELD_OUT, _PARTS)
        found: list[float] = np.frombuffer(self._run.world.from_rank(0, np.array(losses).tobytes())).tolist()
        return found


def tried(config: RunConfig, lr: float) -> RunConfig:
    """The options of a trial: a constant lr, and batches and directions that are not those of the run's own steps."""
    (seed,) = direction_seeds(config.seed, MOST_STEPS, 1)  # of a step that no run takes
    rule = dataclasses.replace(config.rule, lr=lr, schedule="constant")
    return dataclasses.replace(config, rule=rule, seed=seed)


def has_risen(records: Sequence[StepRecord], base: float) -> bool:
    """Whether the last steps' losses are far above the first and the base's: such a trial need not go on."""
    if len(records) <= _LAST or min(records[0].loss, base) <= 0:  # less than nothing: a reward
        return False
    return statistics.mean(one.loss for one in records[-_LAST:]) > _RISEN * max(records[0].loss, base)

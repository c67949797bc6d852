"""Steps: what a run does between two looks at the validation set, the records of it, and what it says of itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from noback.config import RunConfig
from noback.engines import STILL
from noback.errors import NobackError
from noback.folder import RunFolder
from noback.health import DOMINATED, ENOUGH_STEPS, agreement_figures, noise_figures, slope_figures, tie_advice
from noback.journal import Contents, EpsChange, Journal, StepRecord
from noback.objectives import Function
from noback.run import Measured, Run
from noback.values import Estimate


class Diverged(NobackError):
    """The loss is no longer a number."""


@dataclass(slots=True)
class _Window:
    """What was measured since the last look at the validation set; only people read it."""

    sought: int = 0  # directions along which the noise of a slope is to be seen
    slopes: list[float] = field(default_factory=list)
    halves: list[tuple[float, float]] = field(default_factory=list)
    scored: list[tuple[float, float, float]] = field(default_factory=list)  # a slope, again, and at twice the eps

    def add(self, measured: Measured) -> None:
        self.slopes += measured.estimate.slopes
        self.halves += measured.halves()

    def figures(self) -> dict[str, float]:
        return {"slopes": len(self.slopes), **slope_figures(self.slopes), **agreement_figures(self.halves)}


class Steps:
    """Takes a run's steps and writes their records.

    Where the run allows it, a GPU takes the next step while the host reads and writes the record of the one before: its
    weights are ahead of the journal by one step, and by two while it writes. They die with the process, and whatever
    outlives it waits (`settle`).
    """

    def __init__(self, run: Run, journal: Journal, contents: Contents, health_every: int | None) -> None:
        self._run, self._journal, self._contents, self._health_every = run, journal, contents, health_every
        self._window = _Window(_sought(run))
        self._ahead: tuple[int, Callable[[], Measured]] | None = None  # a step that was taken and is not recorded
        self._warned = False

    def take(self, step: int) -> None:
        """Measure a step, record it and move the weights."""
        run = self._run
        eps = _eps(run, self._journal, self._contents)
        probed = bool(self._health_every) and step % (self._health_every or 1) == 0
        sought = len(self._window.scored) < self._window.sought
        if run.late and not (is_due(step, run.config) or probed or sought):
            taken = run.take(step, eps)
            self.settle()
            self._ahead = step, taken
        else:
            self.settle()
            measured = run.measure(step, eps)
            record = self._record(step, measured.estimate)
            if sought:
                self._window.scored += _scored_again(run, step, eps, measured.estimate)
            _advance(run, record, probed=probed)
            self._tell(measured)

    def settle(self) -> None:
        """Bring the journal to where the weights are."""
        if self._ahead is not None:
            step, taken = self._ahead
            measured = taken()
            self._record(step, measured.estimate)
            self._ahead = None
            self._tell(measured)

    def sum_up(self) -> None:
        """Say how healthy the steps since the last look were."""
        self._window = _summed_up(self._run, len(self._contents.steps), self._window)

    def _record(self, step: int, estimate: Estimate) -> StepRecord:
        record = StepRecord(step, estimate.loss, estimate.slopes)
        _check_finite(estimate, step, self._run.folder)
        self._journal.append(record)
        self._contents.steps.append(record)
        return record

    def _tell(self, measured: Measured) -> None:
        self._window.add(measured)
        self._run.watcher.stepped(len(self._contents.steps), self._run.config.steps, measured.estimate)
        self._warned = self._warned or _warned_of_ties(self._run, self._contents)


def _eps(run: Run, journal: Journal, contents: Contents) -> float:
    """The step's eps; where ties make it grow, that is in the journal before it is used."""
    estimator, changes = run.config.estimator, contents.eps_changes
    now, since = (changes[-1].eps, changes[-1].step) if changes else (run.config.eps, 0)
    if estimator.adapt_ties is None:
        return now
    first = max(since, len(contents.steps) - estimator.adapt_ties.window)
    eps = estimator.adapt_ties.next_eps(now, [record.slopes for record in contents.steps[first:]])
    if eps != now:
        change = EpsChange(len(contents.steps), eps)
        journal.append(change)
        changes.append(change)
        run.watcher.note(f"step {change.step}: too many slopes are zero; eps goes from {now:g} to {eps:g}")
    return eps


def _advance(run: Run, record: StepRecord, *, probed: bool) -> None:
    """Move the weights; now and then, see what the move did to them and to the loss."""
    move, step = run.move(record), record.step
    sampled = run.weights.sample() if is_due(step, run.config) else None
    before = _still_loss(run, step) if probed else 0.0
    run.weights.advance([move])
    if sampled is not None:
        run.folder.add_metrics(
            kind="update", step=step, length=run.step_length(move), weight_norm=run.weights.norm(),
            changed_share=run.weights.changed_share(sampled),
        )  # fmt: skip
    if probed:
        after = _still_loss(run, step)
        expected = sum(term.coefficient * slope for term, slope in zip(move.terms, record.slopes, strict=True))
        figures = {
            "curvature": 2 * (record.loss - before),  # l+ - 2 l0 + l-, the mean over the directions
            "change": after - before,  # of the batch's own loss, by this step
            "expected_change": expected,  # to first order, along the directions that were measured
        }
        run.folder.add_metrics(kind="probe", step=step, loss=before, **figures)
        run.watcher.measured(step, figures)


def _still_loss(run: Run, step: int) -> float:
    (output,), gold = run.outputs(step, [STILL])
    return run.loss(output, gold)


def _summed_up(run: Run, step: int, window: _Window) -> _Window:
    """The health of the steps since the last look, and a new window."""
    if not window.slopes:
        return window
    noise = noise_figures(window.scored, window.slopes)
    for kind, figures in (("health", window.figures()), ("slope_noise", noise)):
        if figures:
            run.folder.add_metrics(kind=kind, step=step, **figures)
            run.watcher.measured(step, figures)
    return _Window()


def _sought(run: Run) -> int:
    """Along how many directions to see the noise of a slope: it costs two steps each, so longer runs have more.

    None where it was seen, on a staircase, and where a function of one's own, which may be dear, is the objective.
    """
    objective = run.config.objective
    seen = any(line.get("kind") == "slope_noise" for line in run.folder.read_metrics())
    if seen or not objective.smooth or isinstance(objective, Function):
        return 0
    return min(max(run.config.steps // 500, 1), 4)


def _scored_again(run: Run, step: int, eps: float, estimate: Estimate) -> list[tuple[float, float, float]]:
    """Each slope of a step with the same points scored once more and with those at twice the eps.

    As many points go through the engine as in a step, and after it: the engine learns nothing that a step depends on.
    """
    slopes = [estimate.slopes]
    for done, each in enumerate((eps, 2 * eps)):
        run.watcher.progress("scoring the step again", done, 2)
        slopes.append(run.measure(step, each).estimate.slopes)
    run.watcher.progress("scoring the step again", 2, 2)
    return list(zip(*slopes, strict=True))


def _warned_of_ties(run: Run, contents: Contents) -> bool:
    """Say once that zero slopes dominate, if they do."""
    config = run.config
    recent = [slope for record in contents.steps[-ENOUGH_STEPS:] for slope in record.slopes]
    if len(contents.steps) < ENOUGH_STEPS or config.estimator.adapt_ties is not None:
        return False
    share = slope_figures(recent)["zero_slope_share"]
    if share <= DOMINATED:
        return False
    run.watcher.note(
        f"warning: {tie_advice(share, config.eps, config.batch, config.estimator.directions, config.objective.kind)}"
    )
    return True


def is_due(step: int, config: RunConfig) -> bool:
    """Whether the validation set is looked at before a step."""
    return step % config.look_every == 0 or step == config.steps


def _check_finite(estimate: Estimate, step: int, folder: RunFolder) -> None:
    if not all(math.isfinite(value) for value in (estimate.loss, *estimate.slopes)):
        raise Diverged(
            f"the loss is {estimate.loss} at step {step}, so the run stops; the journal up to there is sound "
            f"(noback replay {folder.path} DIR --at final): train anew with a smaller lr or eps"
        )

"""Steps: what a run does between two evaluations, the records of it, and what it says of itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from noback.config import RunConfig
from noback.directions import seeds_of
from noback.errors import NoNumbers
from noback.estimators import Estimator
from noback.evaluating import stopping_at
from noback.health import DOMINATED, ENOUGH_STEPS, agreement_figures, noise_figures, slope_figures, tie_advice
from noback.journal import Contents, EpsChange, Journal, StepRecord
from noback.measuring import Measured, Slopes, measure, readings, take
from noback.replaying import move_at, step_length
from noback.run import Run
from noback.values import UNPERTURBED, Estimate, Move
from noback.weights import changed_share, sample_of


@dataclass(slots=True)
class _Window:
    """What was measured since the last evaluation; only people read it."""

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
        # A step that was taken and is not recorded: its number, its slopes, and what waits for the rest.
        self._ahead: tuple[int, Slopes, Callable[[], Measured]] | None = None
        self._warned = False

    def take(self, step: int) -> None:
        """Measure a step, record it and move the weights."""
        run = self._run
        eps = _eps(run, self._journal, self._contents)
        probed = bool(self._health_every) and step % (self._health_every or 1) == 0
        sought = len(self._window.scored) < self._window.sought
        if run.runs_ahead and not (is_due(step, run.config) or probed or sought):
            taken = take(run, step, eps, self._earlier(step))
            self.settle()
            self._ahead = step, *taken
        else:
            self.settle()
            with stopping_at(run, self._contents, step):
                measured = measure(run, step, eps)
                self._record(step, measured.estimate)
            if sought:
                self._window.scored += _scored_again(run, step, eps, measured.estimate)
            self._advance(step, eps, probed=probed)
            self._tell(measured)

    def settle(self) -> None:
        """Bring the journal to where the weights are."""
        if self._ahead is not None:
            step, _, taken = self._ahead
            with stopping_at(self._run, self._contents, step):
                measured = taken()
                self._record(step, measured.estimate)
            self._ahead = None
            self._tell(measured)

    def sum_up(self) -> None:
        """Say how healthy the steps since the last evaluation were."""
        self._window = _summed_up(self._run, len(self._contents.steps), self._window)

    def _earlier(self, step: int) -> list[Slopes]:
        """The slopes of the steps before, newest first, as many as the rule asks for, where the weights are."""
        run, found = self._run, list[Slopes]()
        if self._ahead is not None and run.config.rule.memory:
            found.append(self._ahead[1])
        asked = self._contents.steps[max(step - run.config.rule.memory, 0) :]
        for record in reversed(asked):
            seeds = seeds_of(run.weights.family, run.config.seed, record.step, len(record.slopes))
            found.append((seeds, torch.tensor(record.slopes, dtype=torch.float64).to(run.weights.device)))
        return found

    def _advance(self, step: int, eps: float, *, probed: bool) -> None:
        """Move the weights; now and then, see what the move did to them and to the loss."""
        run, record = self._run, self._contents.steps[step]
        move = move_at(run, self._contents.steps, step)
        sampled = sample_of(run.weights) if is_due(step, run.config) else None
        before = self._loss_at(step, step) if probed else 0.0
        run.weights.advance([move])
        if sampled is not None:
            run.folder.add_metrics(
                kind="update", step=step, length=step_length(run, move), weight_norm=run.weights.norm(),
                changed_share=changed_share(run.weights, sampled),
            )  # fmt: skip
        if probed:
            after = self._loss_at(step + 1, step)
            estimator = dataclasses.replace(run.config.estimator, eps=eps)
            figures = probe_figures(estimator, record, move, before, after, groups=len(run.groups))
            run.folder.add_metrics(kind="probe", step=step, loss=before, **figures)
            run.watcher.measured(step, figures)

    def _loss_at(self, taken: int, step: int) -> float:
        """The loss of the batch of `step` with the weights as they stand after `taken` steps."""
        with stopping_at(self._run, self._contents, taken):
            (found,), gold = readings(self._run, step, [UNPERTURBED])
            return self._run.loss_of(found, gold)

    def _record(self, step: int, estimate: Estimate) -> None:
        record = StepRecord(step, estimate.loss, estimate.slopes, estimate.figures)
        _check_finite(estimate)
        self._contents.add(record, self._journal.append(record))

    def _tell(self, measured: Measured) -> None:
        self._window.add(measured)
        self._run.watcher.stepped(len(self._contents.steps), self._run.config.steps, measured.estimate)
        self._warned = self._warned or _warned_of_ties(self._run, self._contents)


def _eps(run: Run, journal: Journal, contents: Contents) -> float:
    """The step's eps; where ties make it grow, that is in the journal before it is used."""
    now, eps = eps_after(run.config, contents.steps, contents.eps_changes)
    if eps != now:
        change = EpsChange(len(contents.steps), eps)
        contents.add(change, journal.append(change))
        run.watcher.note(f"step {change.step}: too many slopes are zero; eps goes from {now:g} to {eps:g}")
    return eps


def eps_after(config: RunConfig, records: Sequence[StepRecord], changes: Sequence[EpsChange]) -> tuple[float, float]:
    """The eps of the last step, and that of the next one: larger where ties make it grow."""
    ties = config.adapt_ties
    now, since = (changes[-1].eps, changes[-1].step) if changes else (config.eps, 0)
    if ties is None:
        return now, now
    first = max(since, len(records) - ties.window)
    dead = not any(slope for record in records for slope in record.slopes)
    return now, ties.next_eps(now, [record.slopes for record in records[first:]], dead=dead)


def probe_figures(
    estimator: Estimator, record: StepRecord, move: Move, before: float, after: float, *, groups: int = 1
) -> dict[str, float]:
    """What a step did to its own batch's loss, beside what its slopes promised."""
    figures = {"change": after - before}  # of the batch's own loss, by this step
    # Else it goes on along older directions, or others' along a group's own, or weight by weight: slopes that are not
    # known here.
    if move.adaptive is None and len(move.terms) == len(record.slopes) and groups == 1:
        along = zip(move.terms, record.slopes, strict=True)
        expected = sum(term.coefficient * slope for term, slope in along) * estimator.unit(record.figures)
        figures["expected_change"] = expected  # to first order
    if estimator.mirrored:
        # l+ - 2 l0 + l-, the mean over the directions. The record's loss is the mean over all points of the step, and
        # the weights as they stand may be one of them.
        figures["curvature"] = estimator.forwards / estimator.directions * (record.loss - before)
    return figures


def _summed_up(run: Run, step: int, window: _Window) -> _Window:
    """The health of the steps since the last evaluation, and a new window."""
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

    None where it was seen, and where the objective is piecewise constant or costly.
    """
    objective = run.config.objective
    seen = any(line.get("kind") == "slope_noise" for line in run.folder.read_metrics())
    if seen or not objective.smooth or objective.costly:
        return 0
    return min(max(run.config.steps // 500, 1), 4)


def _scored_again(run: Run, step: int, eps: float, estimate: Estimate) -> list[tuple[float, float, float]]:
    """Each slope of a step with the same points scored once more and with those at twice the eps.

    As many points go through the engine as in a step, and after it: the engine learns nothing that a step depends on.
    """
    run.watcher.note(f"step {step}: its points are scored twice more, once in a run, to see the noise of a slope")
    slopes = [estimate.slopes]
    for done, each in enumerate((eps, 2 * eps)):
        run.watcher.progress("scoring the step again", done, 2)
        slopes.append(_slopes_at(run, step, each))
    run.watcher.progress("scoring the step again", 2, 2)
    return list(zip(*slopes, strict=True))


def _slopes_at(run: Run, step: int, eps: float) -> tuple[float, ...]:
    """The slopes of a step at some eps; nan, which has no figures, where that is too far from the weights."""
    try:
        return measure(run, step, eps).estimate.slopes
    except NoNumbers:
        return (math.nan,) * run.directions


def _warned_of_ties(run: Run, contents: Contents) -> bool:
    """Say once that zero slopes dominate, if they do."""
    config = run.config
    recent = [slope for record in contents.steps[-ENOUGH_STEPS:] for slope in record.slopes]
    if len(contents.steps) < ENOUGH_STEPS or config.adapt_ties is not None:
        return False
    share = slope_figures(recent)["zero_slope_share"]
    if share <= DOMINATED:
        return False
    run.watcher.note(
        f"warning: {tie_advice(share, config.eps, config.batch, config.estimator.directions, config.objective.kind)}"
    )
    return True


def is_due(step: int, config: RunConfig) -> bool:
    """Whether the validation set is evaluated before a step."""
    return step % config.steps_between_evaluations == 0 or step == config.steps


def _check_finite(estimate: Estimate) -> None:
    """Refuse an estimate that the journal could not keep as numbers."""
    for name, values in (("loss", (estimate.loss,)), ("slope", estimate.slopes), ("figure", estimate.figures)):
        for value in values:
            if not math.isfinite(value):
                raise NoNumbers(f"the {name} is {value}")

"""Training: the loop, from the start or from where a run's folder says it is."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from noback.adapters import Lora
from noback.calibration import calibrated_accuracy
from noback.config import RunConfig
from noback.embedded import MODELS
from noback.engines import STILL
from noback.errors import InputError, NobackError
from noback.folder import RunFolder, next_folder
from noback.health import DOMINATED, ENOUGH_STEPS, agreement_figures, noise_figures, slope_figures, tie_advice
from noback.journal import Contents, EpsChange, Journal, StepRecord, rounded
from noback.memory import forget_peak
from noback.objectives import Function, ObjectiveError, Reward
from noback.result import Result, finished
from noback.run import Measured, Run, drawn_data, recorded_config
from noback.snapshot import prune_snapshots, save_snapshot
from noback.values import Estimate, Score
from noback.watching import Watcher

_SNAPSHOT_EVERY = 10  # times what one takes to write


class Interrupted(NobackError):
    """The run was asked to stop; everything up to here is safe."""

    exit_code = 130


class Diverged(NobackError):
    """The loss is no longer a number."""


def train(
    config: RunConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    health_every: int | None = None,
) -> Result:
    """Train from the start in a new run folder; `stop` is asked after each step whether to leave off.

    `health_every`: so often, two more forwards see the curvature and whether the step lowered the loss.
    """
    config = with_whole_paths(config)
    folder = RunFolder(out if out is not None else next_folder(Path("runs"), Path(config.task).stem))
    if folder.path.exists():
        folder.create("")  # refuses, before the model is opened
    if isinstance(config.objective, Function | Reward):
        config.objective.check()
    drawn = drawn_data(config)  # before the model is opened: what is wrong with the data shows at once
    forget_peak()
    run = Run(config, folder, watcher)
    run.task.use(drawn)
    folder.create(run.config.toml())
    with folder.locked(), _saying_how_to_go_on(folder):
        return _loop(run, stop, health_every)


def resume(
    path: str | os.PathLike[str],
    *,
    watcher: Watcher | None = None,
    device: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    health_every: int | None = None,
) -> Result:
    """Go on with a run from where its folder says it is; `device`: where to, if not where it was."""
    folder = RunFolder(path)
    config = recorded_config(folder)
    config = replace(config, device=device or config.device)
    with folder.locked(), _saying_how_to_go_on(folder):
        drawn = drawn_data(config)
        forget_peak()
        run = Run(config, folder, watcher)
        run.task.use(drawn)
        return _loop(run, stop, health_every)


@contextmanager
def _saying_how_to_go_on(folder: RunFolder) -> Iterator[None]:
    """A user's function that fails costs at most the step in hand."""
    try:
        yield
    except ObjectiveError as error:
        raise ObjectiveError(f"{error}; nothing is lost: mend it, then noback resume {folder.path}") from None


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


@dataclass(slots=True)
class _Snapshots:
    """Takes snapshots as long as they are a small share of a run: what they do not hold, the journal gives again."""

    last: float  # when the run began, or went on, or the last one was taken
    seconds: float = 0.0  # what that took

    def take(self, run: Run, step: int, contents: Contents) -> None:
        """Keep the newest weights and those nearest to the best; the base needs no snapshot."""
        began = time.monotonic()
        if not step or (step < run.config.steps and began - self.last < _SNAPSHOT_EVERY * self.seconds):
            return
        best = contents.best()
        save_snapshot(run.folder.snapshots, step, run.weights)
        prune_snapshots(run.folder.snapshots, step, best.step if best else step)
        self.last = time.monotonic()
        self.seconds = self.last - began


def _loop(run: Run, stop: Callable[[], bool], health_every: int | None) -> Result:
    """Train until the configured step; every record is on the disk before the weights move."""
    config, folder, watcher = run.config, run.folder, run.watcher
    journal, contents = _journal(run)
    _begin(run, contents)
    zero_shot = _zero_shot(run)
    began, earlier = time.monotonic(), _seconds_before(folder)
    step = len(contents.steps)
    run.go_to(step, contents)
    if step:
        watcher.note(f"going on after step {step}")
    told = {line.get("step") for line in folder.read_metrics() if line.get("kind") == "validation"}
    window, snapshots, warned = _Window(_sought(run)), _Snapshots(time.monotonic()), False
    while True:
        looked = step in {look.step for look in contents.evaluations}
        if _due(step, config) and not (looked and step in told):
            score = run.score("validation")
            if not looked:
                look = rounded(score.score, score.loss, step)
                journal.append(look)
                contents.evaluations.append(look)
            told.add(step)  # a process that was killed here left its look in the journal and no line for people
            seconds = earlier + time.monotonic() - began
            folder.add_metrics(kind="validation", step=step, seconds=round(seconds, 3), **dataclasses.asdict(score))
            snapshots.take(run, step, contents)
            watcher.evaluated(step, score)
            window = _summed_up(run, step, window)
        if step == config.steps:
            break
        if stop():
            raise Interrupted(f"stopped after step {step}; nothing is lost: noback resume {folder.path}")
        eps = _eps(run, journal, contents)
        measured = run.measure(step, eps)
        estimate = measured.estimate
        _check_finite(estimate, step, folder)
        record = StepRecord(step, estimate.loss, estimate.slopes)
        journal.append(record)
        contents.steps.append(record)
        if len(window.scored) < window.sought:
            window.scored += _scored_again(run, step, eps, estimate)
        _advance(run, record, health_every)
        window.add(measured)
        step += 1
        watcher.stepped(step, config.steps, estimate)
        warned = warned or _warned_of_ties(run, contents, eps)
    return finished(run, contents, zero_shot, earlier + time.monotonic() - began)


def _begin(run: Run, contents: Contents) -> None:
    """Say what is about to be done."""
    config, task, watcher = run.config, run.task, run.watcher
    for note in task.notes:
        watcher.note(note)
    if task.size("train") < config.batch:
        watcher.note(f"batch: the whole training set, {task.size('train')} examples")
    balance = {name: task.balance(name) for name in ("train", "validation", "test")}
    for name, counts in balance.items():
        if counts and max(counts) > 2 * min(counts):
            shares = ", ".join(f"{label} {n}" for label, n in zip(task.texts, counts, strict=True))
            watcher.note(f"{name}: the labels are out of balance ({shares})")
    if not any(line.get("kind") == "start" for line in run.folder.read_metrics()):
        run.folder.add_metrics(
            kind="start", time=round(time.time()), labels=task.texts, balance=balance, tuned=run.weights.size,
            smooth=config.objective.smooth,
        )  # fmt: skip
    watcher.began(run.folder.path, config.table(), len(contents.steps))


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


def _advance(run: Run, record: StepRecord, health_every: int | None) -> None:
    """Move the weights; now and then, see what the move did to them and to the loss."""
    move, step = run.move(record), record.step
    sampled = run.weights.sample() if _due(step, run.config) else None
    probed = bool(health_every) and step % (health_every or 1) == 0
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


def _warned_of_ties(run: Run, contents: Contents, eps: float) -> bool:
    """Say once that zero slopes dominate, if they do."""
    config = run.config
    recent = [slope for record in contents.steps[-ENOUGH_STEPS:] for slope in record.slopes]
    if len(contents.steps) < ENOUGH_STEPS or config.estimator.adapt_ties is not None:
        return False
    share = slope_figures(recent)["zero_slope_share"]
    if share <= DOMINATED:
        return False
    run.watcher.note(
        f"warning: {tie_advice(share, eps, config.batch, config.estimator.directions, config.objective.kind)}"
    )
    return True


def _journal(run: Run) -> tuple[Journal, Contents]:
    """The run's journal open for writing, and what it already holds."""
    path = run.folder.journal
    if not path.is_file():
        Journal.create(path, run.header())
    journal, contents = Journal.reopen(path)
    run.begin_with(contents)
    if (contents.header["data"], contents.header["task"]) != (run.task.digest(), run.task.spec.table()):
        raise InputError(
            f"the data or the task file has changed since run {str(run.folder.path)!r} began; put it back or train anew"
        )
    return journal, contents


def _zero_shot(run: Run) -> Score:
    """The test set answered by the base weights, or what was recorded of it."""
    for line in run.folder.read_metrics():
        if line.get("kind") == "zero_shot" and all(item.name in line for item in dataclasses.fields(Score)):
            return Score(**{item.name: line[item.name] for item in dataclasses.fields(Score)})
    answers = run.answers("test")
    score, calibrated = run.scored(*answers), calibrated_accuracy(run, *answers[:2])
    known = {} if calibrated is None else {"calibrated": calibrated}
    run.folder.add_metrics(kind="zero_shot", **dataclasses.asdict(score), **known)
    return score


def _due(step: int, config: RunConfig) -> bool:
    return step % config.look_every == 0 or step == config.steps


def _check_finite(estimate: Estimate, step: int, folder: RunFolder) -> None:
    if not all(math.isfinite(value) for value in (estimate.loss, *estimate.slopes)):
        raise Diverged(
            f"the loss is {estimate.loss} at step {step}, so the run stops; the journal up to there is sound "
            f"(noback replay {folder.path} DIR --at final): train anew with a smaller lr or eps"
        )


def _seconds_before(folder: RunFolder) -> float:
    return max((float(line.get("seconds", 0.0)) for line in folder.read_metrics()), default=0.0)


def with_whole_paths(config: RunConfig) -> RunConfig:
    """Paths of this machine made absolute, so that a run can be resumed from any folder."""

    def whole(value: str | None) -> str | None:
        return str(Path(value).resolve()) if value is not None and Path(value).exists() else value

    adapter = config.adapter
    if isinstance(adapter, Lora) and adapter.start is not None:
        adapter = dataclasses.replace(adapter, start=whole(adapter.start))
    return dataclasses.replace(
        config,
        adapter=adapter,
        data=whole(config.data),
        model=config.model if config.model in MODELS else str(whole(config.model)),
        task=str(whole(config.task)) if config.task.endswith(".toml") else config.task,
    )

"""A run: the parts put together, and the loop."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch

from noback.config import RunConfig, config_of, read_config
from noback.engines import STILL, Engine, Local, model_limit, open_model
from noback.errors import DamagedError, InputError, NobackError
from noback.folder import RunFolder, next_folder
from noback.journal import Contents, Journal, StepRecord, read_journal, rounded
from noback.objectives import METRICS, accuracy, cross_entropy
from noback.snapshot import newest_snapshot, prune_snapshots, save_snapshot
from noback.tasks import Drawn, Task, TaskSpec, draw_examples, spec_for
from noback.values import Estimate, Move, direction_seeds
from noback.weights import Weights

_REPLAY_CHUNK = 64  # steps of a replay in one pass over the weights


@dataclass(frozen=True, slots=True)
class Score:
    """How a set was answered."""

    accuracy: float
    score: float  # the task's own metric
    loss: float
    examples: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run has to say; accuracies are of the test set."""

    run: str
    task: str
    metric: str
    zero_shot: float
    final: float
    best: float
    best_step: int
    steps: int
    forwards: int
    seconds: float
    journal_bytes: int
    weights: str
    final_weights: str


class Watcher(Protocol):
    """Is told what happens in a run; the display is one."""

    def note(self, text: str) -> None:
        """A sentence about the run."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Work other than training steps goes on."""

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """A step was taken."""

    def evaluated(self, step: int, score: Score) -> None:
        """The validation set was looked at after `step` steps."""


class Silent:
    """A watcher that says nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """Nothing."""

    def evaluated(self, step: int, score: Score) -> None:
        """Nothing."""


class Interrupted(NobackError):
    """The run was asked to stop; everything up to here is safe."""

    exit_code = 130


class Run:
    """A configuration, its model and engine, and the folder that records it."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, watcher: Watcher | None = None, spec: TaskSpec | None = None
    ) -> None:
        """`spec` is the task as a journal recorded it; none: as the configuration names it."""
        self.config, self.folder, self.watcher = config, folder, watcher or Silent()
        self.model, self.tokenizer = open_model(config.model, config.dtype)
        self.task = Task(spec or spec_for(config.task, config.columns), self.tokenizer, model_limit(self.model))
        self.weights = Weights(config.adapter.tuned(self.model), config.noise)
        self.engine: Engine = Local(
            self.model,
            self.weights,
            self.task.word_ids,
            probes_per_pass=config.probes_per_pass,
            micro_batch=config.micro_batch,
        )
        self.base = self.weights.digest()

    def header(self) -> dict[str, Any]:
        """What the journal says about itself: with the base weights, enough to replay it."""
        return {
            "format": 1,
            "config": self.config.table(),
            "config_digest": self.config.digest(),
            "task": self.task.spec.table(),
            "base": self.base,
            "data": self.task.digest(),
            "directions": self.config.estimator.directions,
            "versions": versions(),
        }

    def score(self, name: str) -> Score:
        """Answer a whole set with the weights as they stand."""
        parts, done = [], 0
        for batch in self.task.batches(name, self.config.batch):
            parts.append((self.engine.score(batch, [STILL])[0], batch.gold))
            done += len(batch)
            self.watcher.progress(f"answering the {name} set", done, self.task.size(name))
        logits, gold = (torch.cat(list(part)) for part in zip(*parts, strict=True))
        predicted = logits.argmax(dim=1)
        metric = METRICS[self.task.spec.metric]
        return Score(accuracy(predicted, gold), metric(predicted, gold), cross_entropy(logits, gold), len(gold))

    def estimate(self, step: int) -> Estimate:
        """Show the step's batch to the engine at the estimator's points."""
        config = self.config
        batch = self.task.batch(step, config.batch, config.seed)
        seeds = direction_seeds(config.seed, step, config.estimator.directions)
        outputs = self.engine.score(batch, config.estimator.points(seeds))
        losses = [cross_entropy(output, batch.gold) for output in outputs]
        return config.estimator.estimate(seeds, losses)

    def move(self, record: StepRecord) -> Move:
        """The move that a record stands for."""
        seeds = direction_seeds(self.config.seed, record.step, len(record.slopes))
        return self.config.rule.move(record.step, self.config.steps, Estimate(record.loss, seeds, record.slopes))

    def go_to(self, step: int, contents: Contents, *, snapshots: bool = True) -> None:
        """Bring the weights to where `step` steps took them: the newest snapshot or the base, then the journal."""
        found = newest_snapshot(self.folder.snapshots, step) if snapshots else None
        done, tensors = found or (0, None)
        if tensors is None and self.weights.digest() != self.base:
            tensors = self.config.adapter.tuned(open_model(self.config.model, self.config.dtype)[0])
        if tensors is not None:
            self.weights.load(tensors)
        for begin in range(done, step, _REPLAY_CHUNK):
            records = contents.steps[begin : min(begin + _REPLAY_CHUNK, step)]
            self.weights.advance([self.move(record) for record in records])
            self.watcher.progress("replaying the journal", begin + len(records), step)

    def check_base(self, contents: Contents) -> None:
        """Refuse a journal that was made from other weights."""
        if contents.header["base"] != self.base:
            raise DamagedError(
                f"journal {str(self.folder.journal)!r} was made from other base weights "
                f"({contents.header['base'][:12]}) than model {self.config.model!r} has ({self.base[:12]}); "
                "name the model it was made from with --model"
            )


def train(
    config: RunConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train from the start in a new run folder; `stop` is asked after each step whether to leave off."""
    config = _with_whole_paths(config)
    folder = RunFolder(out if out is not None else next_folder(Path("runs"), Path(config.task).stem))
    if folder.path.exists():
        folder.create("")  # refuses, before the model is opened
    drawn = drawn_data(config)  # before the model is opened: what is wrong with the data shows at once
    run = Run(config, folder, watcher)
    run.task.use(drawn)
    folder.create(config.toml())
    with folder.locked():
        return _loop(run, stop)


def resume(
    path: str | os.PathLike[str], *, watcher: Watcher | None = None, stop: Callable[[], bool] = lambda: False
) -> Result:
    """Go on with a run from where its folder says it is."""
    folder = RunFolder(path)
    config = recorded_config(folder)
    with folder.locked():
        drawn = drawn_data(config)
        run = Run(config, folder, watcher)
        run.task.use(drawn)
        return _loop(run, stop)


def drawn_data(config: RunConfig) -> Drawn:
    """The three sets that a configuration describes."""
    spec = spec_for(config.task, config.columns)
    return draw_examples(spec, config.data, config.shots, config.data_seed, config.test_limit)


def _loop(run: Run, stop: Callable[[], bool]) -> Result:
    """Train until the configured step; every record is on the disk before the weights move."""
    config, folder, watcher = run.config, run.folder, run.watcher
    journal, contents = _journal(run)
    for note in run.task.notes:
        watcher.note(note)
    if run.task.size("train") < config.batch:
        watcher.note(f"batch: the whole training set, {run.task.size('train')} examples")
    zero_shot = _zero_shot(run)
    began, earlier = time.monotonic(), _seconds_before(folder)
    step = len(contents.steps)
    run.go_to(step, contents)
    if step:
        watcher.note(f"going on after step {step}")
    while True:
        if _due(step, config) and step not in {look.step for look in contents.evaluations}:
            score = run.score("validation")
            look = rounded(score.score, score.loss, step)
            journal.append(look)
            contents.evaluations.append(look)
            seconds = earlier + time.monotonic() - began
            folder.add_metrics(kind="validation", step=step, seconds=round(seconds, 3), **dataclasses.asdict(score))
            _keep_snapshot(run, step, contents)
            watcher.evaluated(step, score)
        if step == config.steps:
            break
        if stop():
            raise Interrupted(f"stopped after step {step}; nothing is lost: noback resume {folder.path}")
        estimate = run.estimate(step)
        _check_finite(estimate, step, folder)
        record = StepRecord(step, estimate.loss, estimate.slopes)
        journal.append(record)
        contents.steps.append(record)
        run.weights.advance([run.move(record)])
        step += 1
        watcher.stepped(step, config.steps, estimate)
    return _result(run, contents, zero_shot, earlier + time.monotonic() - began)


def _journal(run: Run) -> tuple[Journal, Contents]:
    """The run's journal open for writing, and what it already holds."""
    path = run.folder.journal
    if not path.is_file():
        Journal.create(path, run.header())
    journal, contents = Journal.reopen(path)
    run.check_base(contents)
    if (contents.header["data"], contents.header["task"]) != (run.task.digest(), run.task.spec.table()):
        raise InputError(
            f"the data or the task file has changed since run {str(run.folder.path)!r} began; put it back or train anew"
        )
    return journal, contents


def _zero_shot(run: Run) -> Score:
    """The test set answered by the base weights, or what was recorded of it."""
    for line in run.folder.read_metrics():
        if line.get("kind") == "zero_shot":
            return Score(line["accuracy"], line["score"], line["loss"], line["examples"])
    score = run.score("test")
    run.folder.add_metrics(kind="zero_shot", **dataclasses.asdict(score))
    return score


def _due(step: int, config: RunConfig) -> bool:
    return step % config.look_every == 0 or step == config.steps


def _keep_snapshot(run: Run, step: int, contents: Contents) -> None:
    """Keep the newest weights and the best; the base needs no snapshot."""
    best = contents.best()
    if step:
        save_snapshot(run.folder.snapshots, step, run.weights)
        prune_snapshots(run.folder.snapshots, {step, best.step if best else step})


def _check_finite(estimate: Estimate, step: int, folder: RunFolder) -> None:
    if not all(math.isfinite(value) for value in (estimate.loss, *estimate.slopes)):
        raise NobackError(
            f"the loss is {estimate.loss} at step {step}, so the run stops; the journal up to there is sound "
            f"(noback replay {folder.path} DIR --at final): train anew with a smaller lr or eps"
        )


def _seconds_before(folder: RunFolder) -> float:
    return max((float(line.get("seconds", 0.0)) for line in folder.read_metrics()), default=0.0)


def _result(run: Run, contents: Contents, zero_shot: Score, seconds: float) -> Result:
    """Test the last weights and the best; the run is left with the best."""
    final, final_weights = run.score("test"), run.weights.digest()
    best = contents.best()
    best_step = best.step if best else run.config.steps
    tested = final
    if best_step != run.config.steps:
        run.go_to(best_step, contents)
        tested = run.score("test")
    result = Result(
        run=str(run.folder.path),
        task=run.task.spec.name,
        metric=run.task.spec.metric,
        zero_shot=zero_shot.accuracy,
        final=final.accuracy,
        best=tested.accuracy,
        best_step=best_step,
        steps=run.config.steps,
        forwards=run.config.steps * run.config.estimator.forwards,
        seconds=round(seconds, 3),
        journal_bytes=run.folder.journal.stat().st_size,
        weights=run.weights.digest(),
        final_weights=final_weights,
    )
    run.folder.add_metrics(kind="result", **dataclasses.asdict(result))
    return result


def recorded_config(folder: RunFolder) -> RunConfig:
    """The run's configuration; one that was changed after the journal began is refused."""
    folder.check()
    config = config_of(read_config(folder.config))
    if folder.journal.is_file():
        written = read_journal(folder.journal).header["config"]
        now = config.table()
        for key in sorted({*written, *now}):
            if written.get(key) != now.get(key):
                raise InputError(
                    f"{key} in {str(folder.config)!r} is {now.get(key)!r}, but the journal was made with "
                    f"{written.get(key)!r}; put it back, or train anew with the new value"
                )
    return config


def versions() -> dict[str, str]:
    """The versions that a journal names."""
    names = ("noback", "numpy", "torch", "transformers")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def _with_whole_paths(config: RunConfig) -> RunConfig:
    """Paths of this machine made absolute, so that a run can be resumed from any folder."""

    def whole(value: str | None) -> str | None:
        return str(Path(value).resolve()) if value is not None and Path(value).exists() else value

    return dataclasses.replace(
        config,
        data=whole(config.data),
        model=config.model if config.model == "mini" else str(whole(config.model)),
        task=str(whole(config.task)) if config.task.endswith(".toml") else config.task,
    )

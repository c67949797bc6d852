"""Training: the loop, from the start or from where a run's folder says it is."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from noback.calibration import calibrated_accuracy
from noback.config import RunConfig
from noback.distributed import joined
from noback.engines import AnyEngine, Models, Opened, write_rows
from noback.errors import InputError, Interrupted
from noback.evaluating import answers, one_by_one, per_example, sample_of_training, score_of, stopping_at
from noback.extending import extend, planned, settle
from noback.files import is_regular
from noback.folder import RunFolder, next_folder
from noback.journal import Contents, Journal, Seal, read_journal, rounded
from noback.memory import forget_peak
from noback.objectives import ObjectiveError, refuse_code
from noback.paired import PerExample
from noback.rank_folders import own_folder
from noback.ranks import agree_on_records, agree_on_weights, agree_to_begin, header_of_first, in_equal_groups
from noback.refitting import fit_steps, forwards_taken, refit
from noback.replaying import begin_with, go_to, header, placed
from noback.result import Result, finished
from noback.run import Run, drawn_data, recorded_config, with_whole_paths
from noback.run_data import keep_trained_rows
from noback.screening import screened
from noback.selecting import Candidate, is_better, told
from noback.snapshot import prune_snapshots, save_snapshot, show_snapshot
from noback.stepping import Steps, is_due
from noback.usual import AUTO
from noback.values import Score
from noback.verdict import per_example_of
from noback.watching import Watcher

_SNAPSHOT_EVERY = 10  # times what one takes to write
_SAMPLE = 128  # training examples that are answered before and after, for the verdict
_KEPT = 200_000  # answers of single examples in the lines of a run: some 5 MB

_BALANCING = "; --balance batches draws them in equal shares, and --metric balanced_accuracy or mcc judges them alike"


def train(  # noqa: PLR0913 (all but the first two go by name)
    config: RunConfig,
    out: str | os.PathLike[str] | RunFolder | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    health_every: int | None = None,
    divide: str = "examples",
    tensor_parallel: int = 1,
    models: Models | None = None,
    result_of_stopped: bool = False,
    loaded: Opened | None = None,
    restarted: bool = False,
) -> Result:
    """Train from the start in a new run folder; `stop` is asked after each step whether to leave off.

    On a GPU a step may be told to the watcher when the next is under way; `stop` is then asked before. A run that
    leaves off raises `Interrupted`, or, with `result_of_stopped`, tests what it has and returns its result.
    `loaded`: a model in memory, which is tuned there, in place of the one that `config` names.

    `health_every`: so often, two more forwards see the curvature and whether the step lowered the loss.
    `divide`: what the ranks of a run under torchrun share: examples, points or both. Rank 0's folder is the run's.
    `tensor_parallel`: how many ranks hold one model together, each a part of it.
    `models`: where base models are kept for several runs; none: the model's files are opened.
    `restarted`: the ranks were started again: where one of them has the run's folder, go on with it; torchrun's
    restarts are seen, where `out` says which run it is.
    """
    config = with_whole_paths(config)
    place = out if out is not None else next_folder(Path("runs"), Path(config.task_name).stem)
    folder = place if isinstance(place, RunFolder) else RunFolder(place)
    config.objective.check()
    drawn = drawn_data(config)  # before the model is opened: what is wrong with the data shows at once
    forget_peak()
    with (
        joined(divide, tensor_parallel) as world,
        own_folder(folder, world, fresh=not (again := restarted or (world.again and out is not None))) as own,
    ):
        open_run = partial(Run, watcher=watcher, world=world, models=models, loaded=loaded)
        take_steps = partial(_loop, stop=stop, health_every=health_every, result_of_stopped=result_of_stopped)
        if again and own.path.exists():  # on every rank, or on none
            _check_asked(own, config)
            result = _go_on(own, open_run, take_steps)
        else:
            own.check_new()  # before the model is opened
            run = open_run(in_equal_groups(config, world, len(drawn.splits["train"])), own)
            run.task.use(drawn)
            run.engine.ready()
            with closing(run.engine):
                found = screened(run, stop)  # before the folder: who is killed here begins anew
                own.create(run.config.toml())
                with own.locked(), _saying_how_to_go_on(folder):
                    if found is not None:
                        own.add_metrics(**found.line())
                    result = take_steps(run)
                if loaded is not None and run.readout is not None and run.task.word_ids is not None:
                    write_rows(run.model, run.task.word_ids, run.readout.rows)  # so that it answers as the run does
    return replace(result, run=str(folder.path))  # on every rank, rank 0's


def _check_asked(own: RunFolder, config: RunConfig) -> None:
    """Refuse to go on with another run's folder: ranks that were started again go on with their own only.

    What a run settles by itself, or may change, is left out: an lr that is found, the readout, engine and data's place.
    """
    recorded = recorded_config(own).given()
    for key, value in config.given().items():
        if key in {"data", "device", "engine", "eval_every", "readout"}:
            continue
        wanted, there = (one if isinstance(one, dict) else {"": one} for one in (value, recorded.get(key)))
        for name, one in wanted.items():
            if one != there.get(name) and not (key == "rule" and one == AUTO):
                what = f"{key}.{name}" if name else key
                raise InputError(
                    f"run folder {str(own.path)!r} exists and holds another run: its {what} is "
                    f"{there.get(name)!r}, and {one!r} is asked for; choose another folder"
                )


def _fits_stay(config: RunConfig) -> bool:
    """Whether a longer run would have fitted its readout at the same steps, so that this one can be made longer."""
    longer = fit_steps(config.extended(2 * config.steps))
    return fit_steps(config) == {step for step in longer if step <= config.steps}


def resume(  # noqa: PLR0913 (all but the first go by name)
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    watcher: Watcher | None = None,
    model: str | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
    trust: bool = False,
    stop: Callable[[], bool] = lambda: False,
    health_every: int | None = None,
    divide: str = "examples",
    tensor_parallel: int = 1,
    models: Models | None = None,
    result_of_stopped: bool = False,
) -> Result:
    """Go on with a run from where its folder says it is.

    `model`, `device`, `engine`, `url`: where base, run and what scores are, if not where they were.
    `steps`: make the run longer, to so many steps in all; it ends as one of so many from the start.
    `trust`: whether a function that the folder names may be imported and called. `divide`, `tensor_parallel`: as for
    `train`; there need not be as many ranks as there were, nor need they hold the same parts.
    """
    with joined(divide, tensor_parallel) as world, own_folder(RunFolder(path), world) as folder:
        refuse_code(recorded_config(folder).objective, f"run {str(folder.path)!r}", trust=trust)
        open_run = partial(Run, watcher=watcher, world=world, models=models)
        take_steps = partial(_loop, stop=stop, health_every=health_every, result_of_stopped=result_of_stopped)
        place = partial(placed, model=model, device=device, engine=engine, url=url)
        result = _go_on(folder, open_run, take_steps, steps, place)
    return replace(result, run=str(Path(path)))  # on every rank, rank 0's


def _go_on(
    folder: RunFolder, open_run: Callable[[RunConfig, RunFolder], Run], take_steps: Callable[[Run], Result],
    steps: int | None = None, place: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> Result:  # fmt: skip
    """Go on with the run of a folder; `place` says where things are now."""
    with folder.locked(), _saying_how_to_go_on(folder):
        recorded = settle(folder) if steps is None else planned(folder, steps)
        config = place(recorded)
        drawn = drawn_data(config)
        forget_peak()
        run = open_run(config, folder)
        run.task.use(drawn)
        if steps is not None:
            _check_same(run, read_journal(folder.journal))  # before anything is written
            extend(folder, replace(run.config, model=recorded.model, engine=recorded.engine))
        with closing(run.engine):
            return take_steps(run)


@contextmanager
def _saying_how_to_go_on(folder: RunFolder) -> Iterator[None]:
    """A user's function that fails costs at most the step in hand."""
    try:
        yield
    except ObjectiveError as error:
        raise ObjectiveError(f"{error}; nothing is lost: fix it, then noback resume {folder.path} --trust") from None


@dataclass(slots=True)
class _Snapshots:
    """Takes snapshots as long as they are a small share of a run: what they do not hold, the journal gives again."""

    last: float  # when the run began, or went on, or the last one was taken
    seconds: float = 0.0  # what that took

    def take(self, run: Run, step: int, contents: Contents) -> None:
        """Keep the newest weights and those nearest to the best; the base needs no snapshot."""
        began, first = time.monotonic(), run.world.is_first
        ends = step == run.config.steps or contents.stopped_early
        wanted = bool(step) and (ends or began - self.last >= _SNAPSHOT_EVERY * self.seconds)
        if run.weights.is_divided and run.world.answer_of_first(wanted) and not first:
            if run.world.model == 0:
                show_snapshot(run.weights)
            return
        if not (wanted and first):  # other ranks' weights are the same
            return
        best = contents.best()
        save_snapshot(run.folder.snapshots, step, run.weights, contents.digests)
        prune_snapshots(run.folder.snapshots, step, best.step if best else step)
        self.last = time.monotonic()
        self.seconds = self.last - began


def _loop(run: Run, stop: Callable[[], bool], health_every: int | None, *, result_of_stopped: bool) -> Result:
    """Train until the configured step; every record is on the disk before anything that follows from it.

    On a CPU that is the move of the weights. A GPU's memory dies with the process, so its weights may have moved by
    the time the record is on the disk; evaluations, snapshots and the end wait for it.
    """
    config, folder, watcher = run.config, run.folder, run.watcher
    agree_to_begin(run)
    journal, contents = _journal(run)
    agree_on_records(run, contents)
    _begin(run, contents)
    zero_shot = _zero_shot(run)
    began, earlier = time.monotonic(), _seconds_before(folder)
    step = len(contents.steps)
    best, at = _made_again(run, contents, earlier)
    go_to(run, step, contents, at=at)
    if step:
        longer = "; resume --steps N makes it longer" * (not contents.stopped_early and _fits_stay(config))
        ended = step >= config.steps or contents.stopped_early
        watcher.note(f"the run has taken its {step} steps{longer}" if ended else f"going on after step {step}")
    known = _known(run, contents)
    steps, snapshots = Steps(run, journal, contents, health_every), _Snapshots(time.monotonic())
    while True:
        recorded = step in {one.step for one in contents.evaluations}
        if is_due(step, config) and not (recorded and step in known):
            steps.settle()
            found, examples = _looked(run, contents, step)
            candidate = Candidate(found.loss, examples)
            if not recorded:
                chosen = contents.is_chained and contents.chooses and (best is None or is_better(candidate, best))
                evaluation = rounded(found.score, found.loss, step, chosen=chosen, readout=run.readout_values)
                contents.add(evaluation, journal.append(evaluation))
            best = candidate if contents.evaluations[-1].chosen else best
            known.add(step)  # a process that was killed here left its evaluation in the journal and no line for people
            _tell(run, step, earlier + time.monotonic() - began, found, examples)
            snapshots.take(run, step, contents)
            watcher.evaluated(step, found)
            steps.sum_up()
        if step == config.steps or contents.stopped_early:
            break
        if run.world.answer_of_first(stop()):
            steps.settle()
            if result_of_stopped:
                return finished(run, contents, zero_shot, earlier + time.monotonic() - began, stopped=True)
            trust = " --trust" if config.objective.function else ""
            raise Interrupted(f"stopped after step {step}; nothing is lost: noback resume {folder.path}{trust}")
        steps.take(step)
        step += 1
    if contents.stopped_early:
        watcher.note(f"stopped early at step {step}: {config.patience} evaluations in a row brought no better weights")
    if contents.is_chained and not contents.sealed:
        seal = Seal(step)
        contents.add(seal, journal.append(seal))
    _tell_training(run, contents, step)
    return finished(run, contents, zero_shot, earlier + time.monotonic() - began)


def _looked(run: Run, contents: Contents, step: int) -> tuple[Score, PerExample]:
    """An evaluation at a step, the readout fitted before it where its turn is."""
    agree_on_weights(run, step)
    with stopping_at(run, contents, step):
        if run.readout is not None and not contents.evaluations:
            _tell_untouched(run)
        refit(run, contents, step)
        return _evaluated(run)


def _tell_untouched(run: Run) -> None:
    """The validation set answered before a readout's first fit: what the verdict counts a gain from."""
    found, examples = _evaluated(run)
    kept = examples.sampled(_kept(run.config))._asdict()
    run.folder.add_metrics(kind="untouched", step=0, **dataclasses.asdict(found), **kept)


def _evaluated(run: Run) -> tuple[Score, PerExample]:
    """The validation set answered: how good the answers are, together and one by one."""
    answered = answers(run, "validation")
    return score_of(run, answered), per_example(run, answered)


def _tell(run: Run, step: int, seconds: float, found: Score, examples: PerExample) -> None:
    """Write the line of an evaluation, for people and for the verdict."""
    run.folder.add_metrics(
        kind="validation", step=step, seconds=round(seconds, 3), forwards=forwards_taken(run, step),
        **dataclasses.asdict(found), **examples.sampled(_kept(run.config))._asdict(),
    )  # fmt: skip


def _kept(config: RunConfig) -> int:
    """How many answers of single examples the line of an evaluation may hold."""
    return max(_KEPT // (config.steps // config.steps_between_evaluations + 2), _SAMPLE)


def _known(run: Run, contents: Contents) -> set[int]:
    """The steps whose lines are whole; a run that was made longer may hold fewer answers a line than it did before."""
    found, most = run.folder.read_metrics(), _kept(run.config)
    return told(contents, [line for line in found if len(line.get("credits") or ()) <= most])


def _tell_training(run: Run, contents: Contents, step: int) -> None:
    """Answer a sample of the training set with the weights as they stand after `step` steps, for the verdict."""
    with stopping_at(run, contents, step):
        answered = sample_of_training(run, _SAMPLE)
        if answered is not None:
            run.folder.add_metrics(kind="training", step=step, **per_example(run, answered)._asdict())


def _made_again(run: Run, contents: Contents, seconds: float) -> tuple[Candidate | None, int | None]:
    """What a run that goes on needs and does not have: the best evaluation so far, and where the weights stand then.

    The choice of the best weights never reads a line of metrics, which may be lost or changed: what later evaluations
    are compared with is made again. The verdict reads the lines of the first and the best, which are written anew.
    """
    best, at, candidate = contents.best(), None, None
    known, taken = _known(run, contents), len(contents.steps)
    goes_on = contents.chooses and bool(best) and contents.evaluations[-1].step < run.config.steps
    for step in sorted({0, best.step} if best else set[int]()):
        is_lost = step not in known
        if (step == taken and is_lost) or not (is_lost or (goes_on and best and step == best.step)):
            continue  # it is evaluated below, or nothing is to be compared with it
        lost = "is lost from metrics.jsonl" if is_lost else "is what later ones are compared with"
        run.watcher.note(f"the evaluation at step {step} {lost}: evaluating anew")
        go_to(run, step, contents, at=at)
        at = step
        with stopping_at(run, contents, step):
            found, examples = _evaluated(run)
        candidate = Candidate(found.loss, examples) if best and step == best.step else None
        if is_lost:
            _tell(run, step, seconds, found, examples)
    sampled = [line for line in run.folder.read_metrics() if line["kind"] == "training" and line.get("step") == 0]
    if not any(map(per_example_of, sampled)):
        if contents.steps:
            go_to(run, 0, contents)
        at = 0
        _tell_training(run, contents, 0)
    return candidate, at


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
            helps = _BALANCING if name == "train" and config.balance is None else ""
            watcher.note(f"{name}: the labels are out of balance ({shares}){helps}")
    if not any(line.get("kind") == "start" for line in run.folder.read_metrics()):
        run.folder.add_metrics(
            kind="start", time=round(time.time()), labels=task.texts, balance=balance, tuned=run.weights.size,
            smooth=config.objective.smooth, overlap=task.overlaps.table(),
        )  # fmt: skip
    watcher.began(run.folder.path, config.table(), len(contents.steps))


def _journal(run: Run) -> tuple[Journal, Contents]:
    """The run's journal open for writing, and what it already holds."""
    path = run.folder.journal
    if not is_regular(path):
        Journal.create(path, header_of_first(run, header(run)))
    journal, contents = Journal.reopen(path)
    _check_same(run, contents)
    _say_threads(run, contents)
    keep_trained_rows(run)
    return journal, contents


def _check_same(run: Run, contents: Contents) -> None:
    """Begin with what the journal began with; refuse another model, other data and another task than it has."""
    begin_with(run, contents)
    if (contents.header["data"], contents.header["task"]) != (run.task.digest(), run.task.spec.table()):
        raise InputError(
            f"the data or the task file has changed since run {str(run.folder.path)!r} began; put it back or train anew"
        )


def _say_threads(run: Run, contents: Contents) -> None:
    """Say what a run on another number of threads can promise."""
    began, now = contents.header.get("threads"), torch.get_num_threads()
    if run.device.type == "cpu" and began not in (None, now):
        run.watcher.note(
            f"the run began with {began} threads and goes on with {now}: sums are rounded in another order, so it may "
            f"end on other bits than with {began}; what the journal holds replays to its bits on any number"
        )


def _zero_shot(run: Run) -> Score:
    """The test set answered by the base weights, or what was recorded of it."""
    for line in run.folder.read_metrics():
        if line["kind"] == "zero_shot" and _holds_score(line):
            return Score(**{item.name: line[item.name] for item in dataclasses.fields(Score)})
    answered = answers(run, "test")
    found, calibrated = score_of(run, answered), calibrated_accuracy(run, *answered[:2])
    known = {} if calibrated is None else {"calibrated": calibrated}
    run.folder.add_metrics(kind="zero_shot", **dataclasses.asdict(found), **one_by_one(run, answered), **known)
    return found


def _holds_score(line: Mapping[str, Any]) -> bool:
    """Whether a line of metrics has a score in the form that was written."""
    whole = isinstance(line.get("examples"), int) and isinstance(line.get("confusion"), list)
    numbers = [line.get(key) for key in ("score", "loss")]
    numbers += [line[key] for key in ("accuracy", "objective") if line.get(key) is not None]
    known = all(item.name in line for item in dataclasses.fields(Score))
    return whole and known and all(isinstance(value, int | float) for value in numbers)


def _seconds_before(folder: RunFolder) -> float:
    found = (line.get("seconds") for line in folder.read_metrics())
    return max((float(value) for value in found if isinstance(value, int | float)), default=0.0)

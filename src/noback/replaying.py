"""Replay: a journal's records become moves, and bring the weights to where any step left them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.config import RunConfig, config_of, table_of
from noback.directions import Noise, seeds_of
from noback.engines import AnyEngine, check_identity
from noback.errors import DamagedError, InputError, shown
from noback.files import is_regular
from noback.folder import RunFolder
from noback.header import check_run, spelled_out
from noback.inputs import whole_number_in
from noback.journal import Contents, StepRecord, read_journal
from noback.rules import Rule, move_of
from noback.run import Run, device_name, recorded_config, versions
from noback.run_data import rows_digest
from noback.snapshot import newest_snapshot
from noback.tensor_bytes import packed, unpacked
from noback.values import Estimate, Move

CHUNK = 64  # steps of a replay in one pass over the weights


class Recorded(NamedTuple):
    """A run as its folder, or its journal alone, describes it: nothing of it is opened yet."""

    folder: RunFolder
    config: RunConfig
    contents: Contents

    @property
    def where(self) -> str:
        """How a sentence names the journal."""
        return f"journal {str(self.folder.journal)!r}"


def recorded(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
) -> Recorded:
    """What a run's folder or its journal says.

    `model`, `device`, `engine` and `url`: where its base, it, and what scores are, if not where they were.
    """
    folder = RunFolder(path)
    alone = folder.path.exists() and not folder.path.is_dir()  # a journal by itself
    if alone:
        folder.journal = folder.path
        folder.snapshots = folder.path.with_name(folder.path.name + ".snapshots")
        folder.trained_rows = folder.path.with_name(folder.path.name + ".trained-rows")
    else:
        config = recorded_config(folder)
        if not is_regular(folder.journal):
            raise InputError(
                f"run {str(folder.path)!r} has no journal yet; start it with `noback resume {folder.path}`"
            )
    contents = read_journal(folder.journal)
    check_run(contents.header, f"journal {str(folder.journal)!r}")
    if alone:
        config = config_of(spelled_out(contents.header["config"]))
    return Recorded(folder, placed(config, model=model, device=device, engine=engine, url=url), contents)


def placed(
    config: RunConfig,
    *,
    model: str | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
) -> RunConfig:
    """A configuration with where the base, the run and what scores are now; none: as it was."""
    table = config.given()
    if engine is not None:
        table["engine"] = engine if isinstance(engine, str) else table_of(engine)
    found = config_of(table).engine
    return dataclasses.replace(
        config,
        model=model or config.model,
        device=device or config.device,
        engine=found if url is None else found.at(url),
    )


def step_at(contents: Contents, at: str) -> int:
    """The step that `best`, `final`, `base` or a number names."""
    last = len(contents.steps)
    best = contents.best()
    named = {"base": 0, "final": last, "best": best.step if best else last}
    if at in named:
        return named[at]
    step = whole_number_in(at)
    if step is None or step > last:
        raise InputError(
            f"step {shown(at)} is not in this run; expected best, final, base or a number from 0 to {last}"
        )
    return step


def header(run: Run) -> dict[str, Any]:
    """What the journal says about itself: with the base weights, enough to replay it."""
    config = run.config
    return {
        "config": config.recorded(),
        "config_digest": config.digest(),
        "task": run.task.spec.table(),
        "base": run.base,
        **run.identity,
        "start": run.start,
        **({} if config.adapter.portable else {"start_tensors": packed(run.weights.tensors)}),
        "data": run.task.digest(),
        "trained_rows": rows_digest(run.task.fingerprints("train")),
        "directions": run.directions,
        "figures": list(config.estimator.figures),
        **readout_part(run),
        "slope_unit": config.estimator.slope_unit,
        "device": device_name(run.device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **({"server": server} if (server := run.engine.ready()) else {}),
    }


def readout_part(run: Run) -> dict[str, Any]:
    """What a header says of a run's readout."""
    if run.readout is None:
        return {}
    shape = run.readout.rows.shape
    return {"readout": {"labels": shape.labels, "columns": shape.columns}}


def begin_with(run: Run, contents: Contents) -> None:
    """Take the start that a journal holds where it cannot be made again; refuse a journal of other weights."""
    where = f"journal {str(run.folder.journal)!r}"
    check_base(run.config.model, where, contents.header, run.base, run.identity)
    if "start_tensors" in contents.header and not run.config.adapter.portable:
        run.begin(unpacked(contents.header["start_tensors"], run.weights.tensors))
    if contents.header.get("readout") != readout_part(run).get("readout"):
        raise DamagedError(
            f"{where} holds a readout of another shape ({contents.header.get('readout')}) than model "
            f"{run.config.model!r} and the task have ({readout_part(run).get('readout')})"
        )
    started = contents.header.get("start", run.start)
    if started != run.start:
        raise DamagedError(
            f"journal {str(run.folder.journal)!r} began with another adapter ({started[:12]}) "
            f"than the one that is there now ({run.start[:12]}); put the one it began with back"
        )


def recorded_move(rule: Rule, seed: int, steps: int, records: Sequence[StepRecord], step: int, *, noise: Noise) -> Move:
    """The move that the record of a step stands for, by the records up to it; `seed` is the run's."""
    newest_first = records[step::-1] if step <= rule.memory else records[step : step - rule.memory - 1 : -1]
    estimates = [
        Estimate(one.loss, seeds_of(noise, seed, one.step, len(one.slopes)), one.slopes, one.figures)
        for one in newest_first
    ]
    return move_of(rule, step, steps, estimates)


def move_at(run: Run, records: Sequence[StepRecord], step: int) -> Move:
    """The move that the record of a step stands for."""
    config, noise = run.config, run.weights.family
    return recorded_move(config.rule, config.seed, config.steps, records, step, noise=noise)


def go_to(run: Run, step: int, contents: Contents, *, snapshots: bool = True, at: int | None = None) -> None:
    """Bring the weights to where `step` steps took them: the newest snapshot or the base, then the journal.

    `at`: the step that they stand at, where that is known; it serves where no snapshot is nearer. A snapshot does not
    hold the moments of a rule that keeps some; those are made again from the first step on.
    """
    found = None
    if snapshots and not run.config.rule.keeps_moments:
        like, say, division = run.weights.tensors, run.watcher.note, run.weights.division
        found = newest_snapshot(run.folder.snapshots, step, contents.digests, like, say, division)
        if run.weights.is_divided and not run.world.same(str(found and found[0])):
            found = None  # a rank that does not see the snapshot: all replay the journal
    start: Mapping[str, Tensor] | None
    if run.readout is not None:
        run.readout.rows.load(contents.readout_at(step))
    done, start = found or (0, None)
    if at is not None and done <= at <= step:
        done, start = at, None
    elif start is None and run.weights.digest() != run.start:
        start = run.start_tensors()
    if start is not None:
        run.weights.load(start)
    for begin in range(done, step, CHUNK):
        end = min(begin + CHUNK, step)
        run.weights.advance([move_at(run, contents.steps, each) for each in range(begin, end)])
        run.watcher.progress("replaying the journal", end, step)


def step_length(run: Run, move: Move) -> float:
    """How far a move goes: directions have unit variance and are all but orthogonal. Of an adaptive one, about."""
    if move.adaptive is not None:
        return move.adaptive.lr * math.sqrt(run.weights.size)
    return math.sqrt(sum(term.coefficient**2 for term in move.terms) * run.weights.size)


def check_base(model: str, where: str, header: Mapping[str, Any], base: str, identity: Mapping[str, Any]) -> None:
    """Refuse a journal that was made from another model; `base` and `identity` are those of this one.

    A base whose weights were only on a server has no digest ("").
    """
    if header["base"] and base and header["base"] != base:
        raise DamagedError(
            f"{where} was made from other base weights ({header['base'][:12]}) than model {model!r} has "
            f"({base[:12]}); name the model it was made from with --model"
        )
    check_identity(model, header, identity)

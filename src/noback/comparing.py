"""The comparison: one task under several objectives, with the same data, seeds and number of forwards."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.adapters import AnyAdapter, Full, Head
from noback.answers import fitted, left_out
from noback.config import RunConfig, config_of
from noback.distributed import refuse_ranks
from noback.errors import Diverged, InputError, Interrupted
from noback.files import read_json, refuse_link, write_whole
from noback.folder import RunFolder, next_folder
from noback.header import spelled_out
from noback.health import slope_figures
from noback.journal import read_journal
from noback.json_text import json_text
from noback.objectives import TEXTS, refuse_code
from noback.options import build, one_of
from noback.result import Result
from noback.run import drawn_data, recorded_config, versions, with_whole_paths
from noback.training import resume, train
from noback.verdict import DIVERGING, evaluations
from noback.watching import Silent, Watcher

COMPARED = ("cross_entropy", "accuracy", "head/cross_entropy", "head/accuracy")
FILE = "comparison.json"


@dataclass(frozen=True, slots=True)
class Compared:
    """One run of a comparison."""

    name: str  # of its folder
    title: str
    config: RunConfig


def objective_config(config: RunConfig, name: str) -> RunConfig:
    """The configuration under another objective: a kind, `module:function`, or `head/` and one of these."""
    place, slash, kind = name.rpartition("/")
    if slash:
        one_of("the part before / of an objective", place, ["head", "words"])
    given = config.adapter
    has_head = given.head_seed is not None
    adapter: AnyAdapter = Full() if has_head else given
    if place == "head":
        if config.quantise is not None:
            raise InputError(
                f"objective {name!r} tunes a head with the model's own weights, and quantise is {config.quantise!r}; "
                "name objectives without a head: --objectives cross_entropy,accuracy"
            )
        adapter = given if has_head else Head()
    if adapter.head_seed is not None:
        config = dataclasses.replace(config, readout=None)  # it stands on top of label words
    table = {"objective": kind} if kind != config.objective.kind else {"objective": config.objective}
    objective = build(RunConfig, table).objective
    return dataclasses.replace(config, objective=objective, adapter=adapter)


def objective_title(config: RunConfig) -> str:
    """`label-word cross-entropy`, `head accuracy`, `reward module:function`."""
    kind = config.objective.function or config.objective.kind
    words = {"cross_entropy": "cross-entropy", "macro_f1": "macro-F1"}
    place = "head" if config.adapter.head_seed is not None else "label-word"
    if config.objective.judges == TEXTS:
        place = "reward"
    with_adapter = "" if config.adapter.kind in ("full", "head") else f" ({config.adapter.kind})"
    return f"{place} {words.get(kind, kind)}{with_adapter}"


def what_is_tuned(adapter: AnyAdapter) -> str:
    """What an adapter tunes, in a word or two."""
    if adapter.head_seed is not None:
        return "fresh head alone" if getattr(adapter, "alone", False) else "all weights, fresh head"
    chosen = getattr(adapter, "tune", None)
    return adapter.kind if chosen is None else f"{chosen} weights" if chosen == "all" else f"weights: {chosen}"


def _tuned_note(config: RunConfig, plan: Sequence[Compared]) -> str:
    """What to bear in mind where some rows tune the given adapter and others a head with the model's own weights."""
    heads = [one for one in plan if one.config.adapter.head_seed is not None]
    if not heads or len(heads) == len(plan) or config.adapter.tunes_base:
        return ""
    kind = config.adapter.kind
    return (
        "rows share data, seeds and the number of forwards, not what is tuned: a fresh head has no place under "
        f"adapter {kind!r}, so its rows tune all weights of the model with it; for rows that tune alike, "
        "compare with --adapter full, or without head/ objectives"
    )


def compare(
    config: RunConfig,
    objectives: Sequence[str] = COMPARED,
    eps: Sequence[float] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train once for each objective and eps, each in a folder of its own inside `out`; the table is saved there.

    A readout stands beside objectives only where it is asked for by name: only cross-entropy could have one.
    """
    config = with_whole_paths(config)
    if config.readout is not None and config.readout.if_possible:
        config = dataclasses.replace(config, readout=None)
    measured: list[float | None] = [*eps] or [config.estimator.eps]
    table = {
        "kind": "comparison",
        "task": config.task_name,
        "config": dataclasses.replace(config, test_limit=_balanced_size(config)).given(),
        "objectives": list(objectives),
        "eps": measured,
        "steps": config.steps,
        "batch": config.batch,
        "versions": versions(),
        "finished": False,
        "rows": [],
    }
    # Refuses what cannot be compared before anything is made.
    table["tuned_note"] = _tuned_note(config, _plan(table, trust=True, where=""))
    folder = Path(out) if out is not None else next_folder(Path("runs"), f"{Path(config.task_name).stem}-compare")
    if folder.exists():
        raise InputError(f"folder {str(folder)!r} exists; choose another with --out, or go on: noback resume {folder}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    write_whole(folder / FILE, json_text(table, indent=1))
    try:
        return resume_comparison(folder, watcher=watcher, trust=True, stop=stop)
    except InputError:
        if [each.name for each in folder.iterdir()] == [FILE]:  # a model that was refused: nothing was begun
            (folder / FILE).unlink()
            folder.rmdir()
        raise


def resume_comparison(
    path: str | os.PathLike[str],
    *,
    watcher: Watcher | None = None,
    trust: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Go on with a comparison: what has ended is kept, what has begun goes on, the rest is trained.

    `trust`: whether functions that the folder names may be imported and called.
    """
    folder, watcher = Path(path), watcher or Silent()
    table = read_comparison(folder)
    plan = _plan(table, trust=trust, where=f"comparison {str(folder)!r}")
    done = {row["name"] for row in table["rows"]}
    for number, one in enumerate(plan, start=1):
        if one.name in done:
            continue
        watcher.note(f"{one.title}, eps {one.config.eps:g} ({number} of {len(plan)})")
        if one.config.readout is None and config_of(table["config"]).readout is not None:
            watcher.note(left_out(one.config, one.config.spec()))
        table["rows"].append(_row(folder, one, _trained(folder, one, watcher, stop, trust=trust)))
        write_whole(folder / FILE, json_text(table, indent=1))
    table["finished"] = True
    write_whole(folder / FILE, json_text(table, indent=1))
    return {"folder": str(folder), **table}


def read_comparison(folder: Path) -> dict[str, Any]:
    """What a comparison's folder says."""
    try:
        table: dict[str, Any] = read_json(folder / FILE)
        shapes = {"config": dict, "objectives": list, "eps": list, "rows": list}
        sound = all(isinstance(table[key], kind) for key, kind in shapes.items())
        if not sound or not all(isinstance(row, dict) and "name" in row for row in table["rows"]):
            raise ValueError("its entries are not those of a comparison")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{str(folder / FILE)!r} is no comparison's table: {error}") from None
    return {**table, "config": spelled_out(table["config"])}


def _plan(table: dict[str, Any], *, trust: bool, where: str) -> list[Compared]:
    refuse_ranks("a comparison is")
    config = config_of(table["config"])
    spec = config.spec()
    plan = []
    for name in table["objectives"]:
        for eps in table["eps"]:
            estimator = dataclasses.replace(config.estimator, eps=eps)
            one = fitted(objective_config(dataclasses.replace(config, estimator=estimator), name), spec)
            refuse_code(one.objective, where, trust=trust)
            one.objective.check()
            title = objective_title(one)
            folder = f"{title}-eps-{one.eps:g}".translate(str.maketrans(" :()", "----"))
            plan.append(Compared(folder, title, one))
    twice = [name for name, count in Counter(one.name for one in plan).items() if count > 1]
    if twice or not plan:
        raise InputError(f"nothing to compare: {twice[0] + ' is named twice' if twice else 'no objective is named'}")
    return plan


def _trained(folder: Path, one: Compared, watcher: Watcher, stop: Callable[[], bool], *, trust: bool) -> Result | None:
    """The run's result; None where its loss ceased to be a number."""
    run = RunFolder(folder / one.name)
    refuse_link(run.path)
    try:
        if run.config.is_file():
            return resume(run.path, watcher=watcher, trust=trust, stop=stop)
        return train(one.config, run.path, watcher=watcher, stop=stop)
    except Interrupted:
        raise Interrupted(f"stopped; nothing is lost: noback resume {folder}") from None
    except Diverged as error:
        watcher.note(f"{one.title}: {error}")
        return None


def _row(folder: Path, one: Compared, result: Result | None) -> dict[str, Any]:
    run = RunFolder(folder / one.name)
    metrics, steps = run.read_metrics(), read_journal(run.journal).steps
    evaluated = evaluations(metrics) or [{}]
    base: dict[str, Any] = next((line for line in metrics if line.get("kind") == "zero_shot"), {})
    return {
        "objective": one.title,
        "name": one.name,
        "adapter": one.config.adapter.kind,
        "tuned": what_is_tuned(one.config.adapter),
        "tuned_weights": next((line.get("tuned") for line in metrics if line.get("kind") == "start"), None),
        "lr": recorded_config(run).lr,
        "eps": one.config.eps,
        **slope_figures([slope for record in steps for slope in record.slopes]),
        "first_loss": evaluated[0].get("objective"),
        "last_loss": evaluated[-1].get("objective") if result else None,
        "before": base.get("accuracy"),
        "after": result.final if result else None,
        "best": result.best if result else None,
        "examples": base.get("examples"),
        "forwards": result.forwards if result else len(steps) * one.config.estimator.forwards,
        "seconds": result.seconds if result else evaluated[-1].get("seconds", 0.0),
        "verdict": result.verdict if result else DIVERGING,
    }


def _balanced_size(config: RunConfig) -> int:
    """The largest test set, within the limit, that holds each of its labels equally often."""
    counts = Counter(example.gold for example in drawn_data(config).splits["test"])
    return min(counts.values()) * len(counts)

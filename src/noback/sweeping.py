"""The sweep: one run for each combination of some options' values; the best setting is chosen by validation."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noback.answers import fitted
from noback.config import RunConfig, config_of
from noback.distributed import refuse_ranks
from noback.engines import Models
from noback.errors import Diverged, InputError, Interrupted, NoNumbers, shown
from noback.files import is_regular, read_json, refuse_link, write_whole
from noback.flag_names import FLAGS
from noback.folder import RunFolder
from noback.header import spelled_out
from noback.journal import read_journal
from noback.json_text import has_numbers, json_text
from noback.keywords import put
from noback.objectives import refuse_code
from noback.reporting.command import command_to_repeat
from noback.result import Result
from noback.run import versions, with_whole_paths
from noback.training import resume, train
from noback.verdict import DIVERGING
from noback.watching import Silent, Watcher

FILE = "sweep.json"
SEED = "seed"  # runs that differ in it alone are one setting
_MOST = 10_000  # runs of a sweep
_MEANS = ("validation", "validation_loss", "before", "test")  # numbers of a run that are averaged over the seeds


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a sweep."""

    name: str  # of its folder
    setting: dict[str, Any]  # what was set, the seed left out
    config: RunConfig


def sweep(
    config: RunConfig,
    over: Mapping[str, Sequence[Any]],
    out: str | os.PathLike[str] | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train once for each combination of the values in `over`, such as {"lr": [1e-6, 1e-5], "seed": [0, 1]}.

    An option goes by its flag's name or its place in the configuration (`rule.lr`). The setting with the highest mean
    validation score over the seeds wins, of equal ones that with the lower mean loss. Given again, a sweep goes on; by
    default its folder is named after what it sweeps over.
    """
    table = _begun(with_whole_paths(config), over)
    plan = _plan(table, trust=True, where="")  # refuses what cannot be run before anything is made
    folder = Path(out) if out is not None else Path("runs") / f"{Path(config.task_name).stem}-sweep-{_digest(table)}"
    if is_regular(folder / FILE):
        before = read_sweep(folder)
        if any(before.get(key) != table[key] for key in ("config", "over")):
            raise InputError(f"{str(folder)!r} holds another sweep; choose another --out")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is not empty and holds no sweep; choose another --out")
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
        _write(folder, table, plan)
    return resume_sweep(folder, watcher=watcher, trust=True, stop=stop)


def resume_sweep(
    path: str | os.PathLike[str],
    *,
    watcher: Watcher | None = None,
    trust: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Go on with a sweep: what has ended is kept, what has begun goes on, the rest is trained.

    `trust`: whether functions that the folder names may be imported and called.
    """
    folder, watcher, models = Path(path), watcher or Silent(), Models()
    table = read_sweep(folder)
    plan = _plan(table, trust=trust, where=f"sweep {str(folder)!r}")
    done = {row["name"] for row in table["rows"]}
    for number, one in enumerate(plan, start=1):
        if one.name not in done:
            watcher.note(f"{one.name} ({number} of {len(plan)})")
            table["rows"].append(_trained(folder, one, models, watcher, stop, trust=trust))
            _write(folder, table, plan)
    table["finished"] = True
    _write(folder, table, plan)
    return {"folder": str(folder), **table}


def read_sweep(folder: Path) -> dict[str, Any]:
    """What a sweep's folder says."""
    table = read_json(folder / FILE)
    shapes = {"config": dict, "over": dict, "rows": list, "task": str, "steps": int, "metric": str}
    sound = isinstance(table, dict) and all(isinstance(table.get(key), kind) for key, kind in shapes.items())
    if not sound or not all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in table["rows"]):
        raise InputError(f"{str(folder / FILE)!r} is no sweep's table; expected what `noback sweep` writes there")
    return {**table, "config": spelled_out(table["config"])}


def _begun(config: RunConfig, over: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The table of a sweep of which nothing has run."""
    lists = {}
    for name, values in over.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"{name} of the sweep is {shown(values)}; expected a list of values that is not empty")
        lists[FLAGS.get(f"--{name.replace('_', '-')}", name)] = list(values)
    if not lists:
        raise InputError("nothing to sweep over; give an option several values, such as --lr 1e-6,1e-5")
    return {
        "kind": "sweep",
        "task": config.task_name,
        "config": json.loads(json_text(config.given())),
        "over": json.loads(json_text(lists)),
        "steps": config.steps,
        "batch": config.batch,
        "metric": fitted(config, config.spec()).metric or "the task's own",
        "versions": versions(),
        "finished": False,
        "rows": [],
    }


def _digest(table: Mapping[str, Any]) -> str:
    text = json_text([table["config"], table["over"]], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _plan(table: Mapping[str, Any], *, trust: bool, where: str) -> list[Planned]:
    """Every run, in the order of the lists; what cannot be a configuration is refused."""
    refuse_ranks("a sweep is")
    over, plan, names = table["over"], [], set()
    count = 1
    for values in over.values():
        count *= len(values) if isinstance(values, list) else 0
    if not 0 < count <= _MOST:
        raise InputError(f"the sweep has {count:,} runs; expected 1 to {_MOST:,}: leave out some values")
    for values in itertools.product(*over.values()):
        setting = dict(zip(over, values, strict=True))
        config = _configured(table["config"], setting)
        config = replace(fitted(config, config.spec()), readout=config.readout)  # a run says why it leaves one out
        refuse_code(config.objective, where, trust=trust)
        name = "-".join(f"{path.rsplit('.', maxsplit=1)[-1]}-{_slug(value)}" for path, value in setting.items())
        if name in names:
            raise InputError(f"the sweep names {name} twice; expected each value once")
        names.add(name)
        plan.append(Planned(name, {path: value for path, value in setting.items() if path != SEED}, config))
    return plan


def _configured(given: Mapping[str, Any], setting: Mapping[str, Any]) -> RunConfig:
    """The configuration with some options set; a kind before the options that it has."""
    table: dict[str, Any] = json.loads(json_text(given))
    for path, value in sorted(setting.items(), key=lambda item: item[0].count(".")):
        put(table, path, value)
    return config_of(table)


def _slug(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
    return "".join(letter if letter.isalnum() or letter in "-+." else "-" for letter in text)[:60]


def _trained(
    folder: Path, one: Planned, models: Models, watcher: Watcher, stop: Callable[[], bool], *, trust: bool
) -> dict[str, Any]:
    """The row of a run: what it gave, or where its loss ceased to be a number."""
    run = RunFolder(folder / one.name)
    refuse_link(run.path)
    row = {"name": one.name, "setting": one.setting, "seed": one.config.seed}
    try:
        if run.config.is_file():
            result = resume(run.path, watcher=watcher, trust=trust, stop=stop, models=models)
        else:
            result = train(one.config, run.path, watcher=watcher, stop=stop, models=models)
    except Interrupted:
        raise Interrupted(f"stopped; nothing is lost: the same command, or noback resume {folder}, goes on") from None
    except (Diverged, NoNumbers) as error:
        watcher.note(f"{one.name}: {error}")
        return {**row, "gap": str(error), "verdict": DIVERGING}
    return {**row, **_figures(run, result)}


def _figures(run: RunFolder, result: Result) -> dict[str, Any]:
    best = read_journal(run.journal).best()
    return {
        "metric": result.metric,
        "validation": best.score if best else None,
        "validation_loss": best.loss if best else None,
        "before": result.zero_shot_score if result.zero_shot is None else result.zero_shot,
        "test": result.best_score if result.best is None else result.best,
        "best_step": result.best_step,
        "steps": result.steps,
        "seconds": result.seconds,
        "verdict": result.verdict,
    }


def _write(folder: Path, table: dict[str, Any], plan: Sequence[Planned]) -> None:
    """Write the table, with what can be said of the settings so far."""
    table["settings"] = settings_of(table["rows"], plan)
    table["winner"] = _winner(table["settings"], plan)
    write_whole(folder / FILE, json_text(table, indent=1))


def settings_of(rows: Sequence[Mapping[str, Any]], plan: Sequence[Planned]) -> list[dict[str, Any]]:
    """One entry a setting: its means over the seeds; one of which a run is missing or diverged cannot win."""
    by_name = {row["name"]: row for row in rows}
    settings: dict[str, list[Planned]] = {}
    for one in plan:
        settings.setdefault(json_text(one.setting, sort_keys=True), []).append(one)
    found = []
    for runs in settings.values():
        ended = [by_name[one.name] for one in runs if one.name in by_name]
        sound = [row for row in ended if has_numbers(row, *_MEANS)]
        entry = {"setting": runs[0].setting, "runs": [one.name for one in runs], "ended": len(ended)}
        entry["diverged"] = sum("gap" in row for row in ended)
        for key in _MEANS:
            values = [float(row[key]) for row in sound]
            entry[key] = statistics.mean(values) if values else None
            entry[f"{key}_std"] = statistics.stdev(values) if len(values) > 1 else None
        entry["whole"] = len(sound) == len(runs)
        found.append(entry)
    return found


def _winner(settings: Sequence[Mapping[str, Any]], plan: Sequence[Planned]) -> dict[str, Any] | None:
    """The setting with the highest mean validation score, then the lowest mean loss, and the command to repeat it."""
    whole = [entry for entry in settings if entry["whole"]]
    if not whole:
        return None
    best = max(whole, key=lambda entry: (entry["validation"], -entry["validation_loss"]))
    first = next(one for one in plan if one.name == best["runs"][0])
    command = " ".join(command_to_repeat(first.config.table(), FLAGS))
    return {**best, "command": command}

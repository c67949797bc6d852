"""The grid of a reproduction: methods x tasks x shots x seeds x learning rates, from a short TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from noback.baselines import METHODS as BASELINES
from noback.config import RunConfig, config_of, read_config
from noback.errors import InputError
from noback.options import check_seed, positive, suggestion, whole

_KEYS = ("about", "model", "data", "tasks", "shots", "seeds", "test_limit", "all_of", "methods")
_METHOD_KEYS = ("name", "baseline", "lrs", "options")


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table: a way of training and the learning rates that are tried."""

    name: str
    baseline: str | None  # zero-shot, probe or adam; None: noback's own training
    lrs: tuple[float | None, ...]
    options: Mapping[str, Any]  # as in run.toml

    @property
    def trains(self) -> bool:
        """Whether its result depends on the training examples."""
        return self.baseline != "zero-shot"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid."""

    name: str
    method: Method
    task: str
    shots: int  # per label, as the grid names them
    seed: int
    lr: float | None
    config: RunConfig


@dataclass(frozen=True)
class Grid:
    """Everything that a reproduction is to run."""

    about: str
    model: str
    data: str
    tasks: tuple[str, ...]
    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    test_limit: int
    methods: tuple[Method, ...]
    all_of: tuple[str, ...] = ()  # tasks whose rarest label has too few examples for most shots: those mean all of them

    @cached_property
    def cells(self) -> list[Cell]:
        """Every run, task by task."""
        return [
            self._cell(method, task, shots, seed, lr)
            for task in self.tasks
            for method in self.methods
            for shots in (self.shots if method.trains else self.shots[:1])
            for seed in (self.seeds if method.trains else self.seeds[:1])
            for lr in method.lrs
        ]

    def _cell(self, method: Method, task: str, shots: int, seed: int, lr: float | None) -> Cell:
        name = Path(task).stem  # a task of one's own goes by the path of its file
        table: dict[str, Any] = {
            **method.options, "model": self.model, "task": task, "data": str(Path(self.data) / name), "shots": shots,
            "seed": seed, "data_seed": seed, "test_limit": self.test_limit,
        }  # fmt: skip
        if task in self.all_of and shots == max(self.shots):
            del table["shots"]
        config = config_of(table)
        if lr is not None:
            config = dataclasses.replace(config, rule=dataclasses.replace(config.rule, lr=lr))
        rate = "" if lr is None else f"-lr{lr:g}"
        slug = "".join(letter if letter.isalnum() else "-" for letter in method.name.lower()).strip("-")
        return Cell(f"{name}-k{shots}-seed{seed}-{slug}{rate}", method, task, shots, seed, lr, config)


def read_grid(path: Path, *, model: str | None = None, data: str | None = None) -> Grid:
    """A grid from its TOML file; `model` and `data` take the place of the file's own."""
    return grid_of({**read_config(path), **({"model": model} if model else {}), **({"data": data} if data else {})})


def grid_of(table: Mapping[str, Any]) -> Grid:
    """A grid from its table; a missing or unknown entry is named."""
    _check_keys(table, _KEYS, "the grid")
    for key in ("tasks", "shots", "seeds", "methods"):
        if not isinstance(table.get(key), list) or not table[key]:
            raise InputError(f"entry {key!r} of the grid is {table.get(key)!r}; expected a list that is not empty")
    texts = {key: table.get(key, default) for key, default in (("about", ""), ("model", "mini"), ("data", "data"))}
    all_of = table.get("all_of", [])
    if not isinstance(all_of, list) or not set(all_of) <= set(table["tasks"]):
        raise InputError(f"all_of of the grid is {all_of!r}; expected a list of some of its tasks")
    for key, text in (*texts.items(), *(("a task", task) for task in table["tasks"])):
        if not isinstance(text, str):
            raise InputError(f"{key} of the grid is {text!r}; expected a text")
    for number in table["shots"]:
        whole("shots", number)
    for number in table["seeds"]:
        check_seed("a seed of the grid", number, 2**32)
    limit = table.get("test_limit", 1000)
    whole("test_limit", limit)
    grid = Grid(
        **texts,
        tasks=tuple(table["tasks"]),
        shots=tuple(table["shots"]),
        seeds=tuple(table["seeds"]),
        test_limit=limit,
        methods=tuple(_method(entry) for entry in table["methods"]),
        all_of=tuple(all_of),
    )
    names = [cell.name for cell in grid.cells]  # refuses options that do not exist
    if len(set(names)) < len(names):
        raise InputError("the grid names a method, task, seed or learning rate twice; expected each once")
    return grid


def _method(entry: Any) -> Method:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise InputError(f"a method of the grid is {entry!r}; expected a table with a name")
    _check_keys(entry, _METHOD_KEYS, f"method {entry['name']!r}")
    baseline = entry.get("baseline")
    if baseline is not None and baseline not in BASELINES:
        raise InputError(f"baseline of method {entry['name']!r} is {baseline!r}; expected {', '.join(BASELINES)}")
    name, lrs, options = entry["name"], entry.get("lrs", []), entry.get("options", {})
    if not isinstance(name, str) or not isinstance(lrs, list) or not isinstance(options, Mapping):
        raise InputError(f"method {name!r} of the grid: expected a text as name, a list as lrs, a table as options")
    for lr in (each for each in lrs if each is not None):
        positive(f"an lr of method {name!r}", lr)
    for key in ("model", "task", "data", "shots", "seed", "data_seed", "test_limit"):
        if key in options:
            raise InputError(f"options of method {name!r} hold {key!r}, which is the grid's own; leave it out")
    return Method(name, baseline, tuple(lrs) or (None,), dict(options))


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{what} has an unknown entry {key!r}{suggestion(key, known)}")


@lru_cache(maxsize=1)
def published() -> dict[str, Any]:
    """The published table: method -> shots -> task -> [mean, standard deviation]."""
    found: dict[str, Any] = tomllib.loads((Path(__file__).parent / "published.toml").read_text(encoding="utf-8"))
    return found

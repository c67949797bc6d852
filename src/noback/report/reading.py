"""A run's folder as a report sees it: its configuration, journal and metrics, and whether it is still going."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.folder import RunFolder
from noback.health import Verdict, verdict
from noback.inputs import read_toml
from noback.journal import Contents, StepRecord, read_journal
from noback.report.formats import number_in

FINISHED, GOING, STOPPED, EMPTY = "finished", "still going", "stopped", "empty"

# What the verdict needs of a line; lines that an older version wrote without it are not shown to it.
_NEEDED = {
    "validation": ("step", "accuracy", "score", "objective", "examples"),
    "health": ("slopes",),
    "update": ("length", "weight_norm", "changed_share"),
    "slope_noise": ("repeat", "two_eps"),
}
_ABOVE_ZERO = ("examples", "weight_norm")
_OR_NONE = ("accuracy",)  # a reward has none


@dataclass(frozen=True, slots=True)
class ReadRun:
    """What a run's folder holds at the moment it is read."""

    name: str
    path: Path
    config: dict[str, Any]
    contents: Contents | None
    metrics: list[dict[str, Any]]
    going: bool

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The metrics of a kind."""
        return [line for line in self.metrics if line.get("kind") == kind]

    def last(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The newest line of a kind with these values; an empty one where there is none."""
        found = [line for line in self.lines(kind) if all(line.get(key) == value for key, value in wanted.items())]
        return found[-1] if found else {}

    def option(self, path: str) -> Any:
        """An option by its dotted name; None where the configuration has none."""
        value: Any = self.config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def has_reward(self) -> bool:
        """Whether a reward judges what the model writes."""
        return bool(self.option("objective.kind") == "reward")

    @property
    def header(self) -> dict[str, Any]:
        """The journal's header; empty where there is no journal."""
        return self.contents.header if self.contents else {}

    @property
    def steps(self) -> list[StepRecord]:
        """The steps that were taken."""
        return self.contents.steps if self.contents else []

    @property
    def slopes(self) -> list[float]:
        """The slopes of every step along every direction."""
        return [slope for record in self.steps for slope in record.slopes]

    @property
    def labels(self) -> list[str]:
        """The text of each label, as far as the run says it."""
        named = self.last("start").get("labels")
        words = self.header.get("task", {}).get("words", {})
        return [str(label) for label in (named or words.values())]

    @property
    def state(self) -> str:
        """Finished, still going, stopped or empty."""
        if self.going:
            return GOING
        if not self.steps:
            return EMPTY
        return FINISHED if self.last("result") else STOPPED

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations by step: the journal's, with what the metrics know besides."""
        found: dict[int, dict[str, Any]] = {}
        for one in self.contents.evaluations if self.contents else []:
            found[one.step] = {"step": one.step, "score": one.score, "loss": one.loss}
            if self.header.get("task", {}).get("metric") == "accuracy":
                found[one.step]["accuracy"] = one.score
        for line in self.lines("validation"):
            step = number_in(line, "step")
            if step is not None:
                found.setdefault(int(step), {}).update(line)
        return [found[step] for step in sorted(found)]

    def judged(self) -> Verdict:
        """The verdict on what the folder holds now."""
        if self.contents is None or not self.steps:
            return Verdict("nothing to judge", ("no step has been taken yet",))
        return verdict(self.contents, [line for line in self.metrics if _is_whole(line)])


def read_run(path: Path, name: str) -> ReadRun:
    """Read a run's folder; a folder that is none is refused, a damaged journal is named."""
    folder = RunFolder(path)
    folder.check()
    going = _is_locked(path / "lock")  # before the journal: what ends in between reads as going, never as stopped
    contents = read_journal(folder.journal) if folder.journal.is_file() else None
    metrics = [line for line in folder.read_metrics() if isinstance(line, dict)]
    recorded = contents.header.get("config") if contents else None
    return ReadRun(name, path, recorded or read_toml(folder.config, "configuration"), contents, metrics, going)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many parents as it takes to tell them apart."""
    whole = [path.resolve() for path in paths]
    names = [path.name or str(path) for path in whole]
    depth = 1
    while len(set(names)) < len(names) and depth < max(len(path.parts) for path in whole):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in whole]
    return names


def _is_locked(path: Path) -> bool:
    """Whether another process holds the lock; asking takes a shared one and lets go at once."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _is_whole(line: dict[str, Any]) -> bool:
    needed = _NEEDED.get(str(line.get("kind")), ())
    values = {
        key: number_in(line, key) for key in needed if not (key in _OR_NONE and key in line and line[key] is None)
    }
    return all(value is not None and (value > 0 or key not in _ABOVE_ZERO) for key, value in values.items())

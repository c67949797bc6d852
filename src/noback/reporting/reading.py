"""A run's folder as a report sees it: its configuration, journal and metrics, and whether it is still going."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.files import is_regular
from noback.folder import RunFolder
from noback.header import spelled_out
from noback.health import on_the_way
from noback.inputs import read_toml
from noback.journal import Contents, StepRecord, read_journal
from noback.json_text import number_in
from noback.verdict import Verdict, stopped_at, verdict

FINISHED, GOING, STOPPED, EMPTY = "finished", "still going", "stopped", "empty"


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
    def task(self) -> Any:
        """The task as it was named; where template and words were given besides, by the name that the journal has."""
        own = self.option("template") is not None and self.option("words") is not None
        recorded = self.header.get("task")
        return recorded.get("name") if own and isinstance(recorded, dict) else self.option("task")

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
        recorded = words.values() if isinstance(words, dict) else ()
        return [str(label) for label in (named or recorded)]

    @property
    def state(self) -> str:
        """Finished, still going, stopped or empty."""
        if self.going:
            return GOING
        if not self.steps:
            return EMPTY
        return FINISHED if self._has_ended else STOPPED

    @property
    def _has_ended(self) -> bool:
        """Whether there is a result, and not one of the time before the run was made longer."""
        result = self.last("result")
        sealed, longer = self.contents is not None and self.contents.sealed, "extended" in self.header
        return bool(result) and (sealed or not longer)

    @property
    def has_diverged(self) -> bool:
        """Whether the run stopped for numbers that are none."""
        return self.contents is not None and bool(stopped_at(self.contents, self.metrics))

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
        if self.contents is None or not (self.steps or self.has_diverged):
            return Verdict("nothing to judge", ("no step has been taken yet",))
        return verdict(self.contents, self.metrics)

    def measured(self) -> tuple[str, ...]:
        """What was measured on the way."""
        return on_the_way(self.contents, self.metrics) if self.contents and self.steps else ()


def read_run(path: Path, name: str) -> ReadRun:
    """Read a run's folder; a folder that is none is refused, a damaged journal is named."""
    folder = RunFolder(path)
    folder.check()
    going = folder.is_locked()  # before the journal: what ends in between reads as going, never as stopped
    contents = read_journal(folder.journal) if is_regular(folder.journal) else None
    metrics = folder.read_metrics()
    recorded = contents.header.get("config") if contents else None
    config = spelled_out(recorded or read_toml(folder.config, "configuration"))
    return ReadRun(name, path, config, contents, metrics, going)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many parents as it takes to tell them apart."""
    whole = [path.resolve() for path in paths]
    names = [path.name or str(path) for path in whole]
    depth = 1
    while len(set(names)) < len(names) and depth < max(len(path.parts) for path in whole):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in whole]
    return names

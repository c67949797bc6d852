"""Watchers: what is told about a run while it goes; the display and the trackers are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from noback.values import Estimate, Score


class Watcher(Protocol):
    """Is told what happens in a run; nothing that it does changes the run's bits."""

    def began(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """A run begins, or goes on after `step` steps."""

    def note(self, text: str) -> None:
        """A sentence about the run."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Work other than training steps goes on; `total` 0: nobody knows how much there is."""

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """A step was taken."""

    def evaluated(self, step: int, score: Score) -> None:
        """The validation set was evaluated after `step` steps."""

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """The health of the steps before `step` was summed up."""


class Silent:
    """A watcher that says nothing; others change what they care about."""

    def began(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """Nothing."""

    def evaluated(self, step: int, score: Score) -> None:
        """Nothing."""

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """Nothing."""


class Several:
    """Tells several watchers, one after the other."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def began(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.began(folder, config, step)

    def note(self, text: str) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.progress(what, done, total)

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.stepped(step, steps, estimate)

    def evaluated(self, step: int, score: Score) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.evaluated(step, score)

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """Tell each."""
        for watcher in self._watchers:
            watcher.measured(step, figures)

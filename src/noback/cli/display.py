"""The live display of a run: a bar in a terminal or a notebook, lines in a log file; always on stderr."""

from __future__ import annotations

import importlib.util
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from noback.errors import printable
from noback.values import Estimate, Score
from noback.watching import Silent

_LOG_SECONDS = 10.0  # between lines in a log file
_PATIENCE = 2.0  # seconds before work that is not training shows a bar


class Display(Silent):
    """Shows notes, the course of training, and any other work that takes over two seconds."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, emoji=False)
        # A live bar in a notebook is a widget; without ipywidgets the notebook gets lines, as a log file does.
        widgets = self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self._live = self._console.is_terminal or widgets
        self._bar: Progress | None = None
        self._what = ""
        self._since = self._logged = time.monotonic()
        self._began_at = 0
        self._validation = ""

    def note(self, text: str) -> None:
        """A sentence about the run."""
        self._say(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Work other than training: a bar once it has lasted two seconds, never while training shows its own.

        `total` 0: nobody knows how much there is.
        """
        if self._bar is not None and self._what == "training":
            return
        now = time.monotonic()
        if what != self._what:
            self.close()
            self._what, self._since, self._logged = what, now, now
        if now - self._since > _PATIENCE and (done < total or not total):
            if self._live:
                self._advance(what, done, total, "")
            elif now - self._logged > _LOG_SECONDS:
                self._logged = now
                self._say(f"{what}: {done} of {total}" if total else f"{what}: {done}")
        if 0 < total <= done:
            self.close()

    def stepped(self, step: int, steps: int, estimate: Estimate) -> None:
        """A training step was taken."""
        if self._what != "training":
            self.close()
            self._what, self._since, self._began_at = "training", time.monotonic(), step - 1
            self._logged = self._since
        slope = max(estimate.slopes, key=abs)
        fields = f"loss {estimate.loss:.3f}  slope {slope:+.2f}  {self._validation}"
        if self._live:
            self._advance("training", step, steps, fields)
        elif time.monotonic() - self._logged > _LOG_SECONDS or step == steps:
            self._logged = time.monotonic()
            pace = (self._logged - self._since) / (step - self._began_at)
            self._say(f"step {step}/{steps}  {fields}  {(steps - step) * pace:.0f} s left")
        if step == steps:
            self.close()

    def evaluated(self, step: int, score: Score) -> None:
        """The validation set was evaluated."""
        if score.accuracy is None:
            self._validation = f"validation reward {score.score:.3f}"
            text = f"step {step}  {self._validation}"
        else:
            self._validation = f"validation {score.accuracy:.1%}"
            text = f"step {step}  validation accuracy {score.accuracy:.1%}  loss {score.loss:.3f}"
        if not self._live:
            self._say(text)

    def close(self) -> None:
        """Leave the display as it is and let go of the terminal."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._what = None, ""

    def _say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def _advance(self, what: str, done: int, total: int, fields: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), _Count(), TextColumn("{task.fields[said]}"),
                TimeRemainingColumn(), console=self._console, transient=what != "training",
            )  # fmt: skip
            self._bar.start()
            self._bar.add_task(what, total=total or None, completed=done, said=fields)
        self._bar.update(self._bar.task_ids[0], completed=done, said=fields)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        """`12/400`, or `12` where the total is not known"""
        return Text(f"{int(task.completed)}/{int(task.total)}" if task.total else f"{int(task.completed)}")

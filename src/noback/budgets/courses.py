"""The course of a run: how the test set is answered after so many forwards, from the journal, after the run."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.budgets.plan import Plan
from noback.evaluating import answers
from noback.folder import RunFolder
from noback.json_text import has_numbers
from noback.refitting import forwards_taken
from noback.replaying import go_to
from noback.run_data import use_own_data
from noback.tuned import open_run
from noback.watching import Watcher


@dataclass(frozen=True, slots=True)
class Course:
    """The steps that a run had taken at each budget, and how it then answered each example of the test set."""

    steps: dict[str, list[int]]  # by the kind of budget: forwards, seconds; -1: the untouched model
    right: dict[int, list[int]]  # by the step: 1 where the answer was right

    def table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"steps": self.steps, "right": {str(step): right for step, right in self.right.items()}}


def course_of(path: Path, plan: Plan, watcher: Watcher) -> Course:
    """Bring a run's weights to where each budget leaves them, and answer the test set there."""
    run, contents = open_run(path, watcher=watcher)
    use_own_data(run, contents.header, changed_ok=False)
    taken = len(contents.steps)
    costs = [forwards_taken(run, step) for step in range(taken + 1)]
    steps = {
        "forwards": [_last_within(costs, budget) for budget in plan.forwards],
        "seconds": [_last_within(seconds_by_step(run.folder, taken), budget) for budget in plan.seconds],
    }
    asked = sorted({0, taken, *steps["forwards"], *steps["seconds"]})
    right, at = dict[int, list[int]](), None
    for done, step in enumerate(asked):
        watcher.progress("answering the test set along a run", done, len(asked))
        go_to(run, max(step, 0), contents, at=at)
        if step < 0 and run.readout is not None:
            run.readout.rows.load(b"")
        logits, gold, _ = answers(run, "test")
        right[step], at = (logits.argmax(dim=1) == gold).long().tolist(), max(step, 0)
    return Course(steps, right)


def seconds_by_step(folder: RunFolder, taken: int) -> list[float]:
    """The seconds of training up to each step: between two evaluations, in proportion to the steps."""
    lines = [line for line in folder.read_metrics() if line.get("kind") == "validation"]
    known = {int(line["step"]): float(line["seconds"]) for line in lines if has_numbers(line, "step", "seconds")}
    marks = sorted(known.items())
    found = []
    for step in range(taken + 1):
        after = bisect.bisect_left(marks, (step, 0.0))
        (low, begin), (high, end) = marks[max(after - 1, 0)], marks[min(after, len(marks) - 1)]
        found.append(end if high == low else begin + (end - begin) * (step - low) / (high - low))
    return found


def _last_within(costs: Sequence[float], budget: float) -> int:
    """The last step that a budget pays for; -1 where it does not pay for what stands before the first."""
    return bisect.bisect_right(costs, budget) - 1

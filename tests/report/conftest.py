"""Small run folders, written as training writes them; no model is needed."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from noback.cli import report
from noback.journal import EpsChange, Evaluation, Journal, StepRecord

CONFIG = {
    "model": "mini", "task": "reviews", "data_seed": 13, "test_limit": 1000, "steps": 40, "batch": 64, "seed": 0,
    "dtype": "float32", "noise": "normal", "eval_every": 10,
    "estimator": {"kind": "two_sided", "eps": 0.001, "directions": 2},
    "rule": {"kind": "sgd", "lr": 2e-05, "weight_decay": 0.0, "schedule": "constant"},
    "adapter": {"kind": "full"}, "objective": {"kind": "cross_entropy"},
}  # fmt: skip
LABELS = ["terrible", "great"]
GRID = {
    "about": "a <small> grid", "model": "mini", "data": "data", "tasks": ["sst2", "rte"], "shots": [16],
    "seeds": [13, 21, 42], "test_limit": 500,
    "methods": [
        {"name": "zero-shot", "baseline": "zero-shot", "lrs": [None], "options": {}},
        {"name": "MeZO", "baseline": None, "lrs": [1e-05, 3e-05], "options": {"steps": 100, "adapter": "lora"}},
    ],
}  # fmt: skip
TOML = """
model = "mini"
task = "reviews"
steps = 40
"""


def steps_of(count: int, scale: float = 1.0) -> list[StepRecord]:
    """A loss that falls with a wiggle; every fourth step's second slope is zero."""
    return [
        StepRecord(step, 0.8 - 0.01 * step + 0.05 * math.sin(step), (scale * math.cos(step), scale * (step % 4) / 8))
        for step in range(count)
    ]


def score(accuracy: float, examples: int = 400) -> dict:
    """A line's figures; half of the examples belong to each label."""
    half = examples // 2
    right = round(accuracy * examples)
    first = min(right, half)
    table = [[first, half - first], [half - (right - first), right - first]]
    return {
        "accuracy": right / examples, "score": right / examples, "loss": 1.0 - accuracy, "objective": 1.1 - accuracy,
        "examples": examples, "confusion": table, "credits": [1] * right + [0] * (examples - right),
        "losses": [1.0 - accuracy + 0.01 * (place % 7) for place in range(examples)],
        "tempered": [1.0 - accuracy + 0.01 * (place % 7) for place in range(examples)],
    }  # fmt: skip


def metrics_of(labels: list[str], steps: int) -> list[dict]:
    """The lines of a finished run."""
    looks = range(0, steps + 1, 10)
    lines = [
        {"kind": "start", "time": 1_700_000_000, "labels": labels, "tuned": 1234567, "smooth": True,
         "balance": {"train": [16, 16], "validation": [50, 50], "test": [200, 200]}},
        {"kind": "zero_shot", **score(0.6)},
    ]  # fmt: skip
    for look in looks:
        lines += [
            {"kind": "validation", "step": look, "seconds": 0.5 + look / 2, **score(0.6 + look / 200, 100)},
            {"kind": "health", "step": look + 10, "slopes": 20, "zero_slope_share": 0.125, "mean_abs_slope": 0.4375,
             "min_abs_slope": 0.0, "max_abs_slope": 0.99, "agreement": 0.5, "signal_to_noise": 1.25},
            {"kind": "update", "step": look, "length": 0.02, "weight_norm": 200.0, "changed_share": 0.75},
        ]  # fmt: skip
    mistake = {"sentences": ["a fine mess", "indeed"], "gold": labels[0], "answer": labels[1], "chance": 0.9375}
    return [
        *lines,
        {"kind": "slope_noise", "step": 10, "directions": 2, "slope": 0.5, "repeat": 0.0, "two_eps": 0.125},
        {"kind": "probe", "step": 0, "loss": 0.7, "curvature": 3e-05, "change": -1e-05, "expected_change": -1.1e-05},
        {"kind": "test", "at": "final", "step": steps, **score(0.78)},
        {"kind": "test", "at": "best", "step": 30, **score(0.8125)},
        {"kind": "mistakes", "step": 30, "mistakes": [mistake]},
        {"kind": "result", "seconds": 25.5, "forwards": 4 * steps, "peak_memory_bytes": 1_319_661_568,
         "journal_bytes": 2048, "steps": steps},
    ]  # fmt: skip


class Folders:
    """Writes run folders under one parent."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent

    def run(  # noqa: PLR0913 (options by name)
        self,
        name="run",
        *,
        steps=40,
        config=CONFIG,
        labels=LABELS,
        metrics=None,
        eps_changes=(),
        scale=1.0,
        metric="accuracy",
        unit=None,
    ) -> Path:
        """A run that took `steps` of its 40 steps; with all of them it is finished."""
        path = self.parent / name
        path.mkdir(parents=True)
        (path / "run.toml").write_text(TOML)
        (path / "lock").touch()
        header = {
            "directions": 2, "config": config, "base": "ab" * 16, "data": "cd" * 16,
            "task": {"name": "reviews", "metric": metric, "words": dict(enumerate(labels))},
            "versions": {"noback": "0.1.0", "torch": "2.13.0"}, **({"slope_unit": unit} if unit else {}),
        }  # fmt: skip
        journal = Journal.create(path / "journal", header)
        for record in steps_of(steps, scale):
            for change in eps_changes:
                if change.step == record.step:
                    journal.append(change)
            if record.step % 10 == 0:
                journal.append(Evaluation(record.step, 0.6 + record.step / 200, 0.4))
            journal.append(record)
        lines = metrics_of(labels, steps) if metrics is None else metrics
        if steps < 40:
            lines = [line for line in lines if line["kind"] not in ("result", "test", "mistakes")]
        write_lines(path, lines)
        return path

    def empty(self, name="empty") -> Path:
        """A run that was made and never began."""
        path = self.parent / name
        path.mkdir(parents=True)
        (path / "run.toml").write_text(TOML)
        return path


def write_lines(path: Path, lines: list[dict]) -> None:
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def raised_eps() -> tuple[EpsChange, ...]:
    return (EpsChange(16, 0.002), EpsChange(32, 0.004))


def write_reproduction(folder: Path, *, gap="no data", tasks=("sst2", "rte"), method="MeZO") -> Path:
    """A reproduction whose second task is a gap in every cell."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in method.lower()).strip("-")
    ends = [f"seed{seed}-{slug}-lr{lr}" for seed in (13, 21, 42) for lr in ("1e-05", "3e-05")]
    cost = {"validation": 0.5, "test": 0.5, "zero_shot": 0.5}
    cells = {f"{tasks[0]}-k16-seed13-zero-shot": {**cost, "forwards": 10, "seconds": 2.0, "peak_memory_bytes": 999}}
    for place, end in enumerate(ends):
        more = {"forwards": 200, "seconds": 10.5, "peak_memory_bytes": 1_000_000 + place, "verdict": "learning"}
        cells[f"{tasks[0]}-k16-{end}"] = {**cost, **more}
    cells |= {f"{tasks[1]}-k16-{end}": {"gap": gap} for end in ("seed13-zero-shot", *ends)}
    none = {"seeds": 0, "lrs": [], "gap": gap}
    rows = [
        {"method": "zero-shot", "shots": 0, "tasks": {
            tasks[0]: {"seeds": 1, "lrs": [None], "mean": 50.0, "std": None, "published": [79.0]},
            tasks[1]: {**none, "published": [51.4]}}},
        {"method": method, "shots": 16, "tasks": {
            tasks[0]: {"seeds": 3, "lrs": [1e-05, 3e-05, 1e-05], "mean": 61.53, "std": 6.07, "published": [90.5, 1.2]},
            tasks[1]: {**none, "published": [64.0, 3.3]}}},
    ]  # fmt: skip
    grid = {**GRID, "tasks": list(tasks), "methods": [GRID["methods"][0], {**GRID["methods"][1], "name": method}]}
    values = {"kind": "reproduction", "grid": grid, "versions": {"noback": "0.1.0", "torch": "2.13.0"}}
    folder.mkdir(parents=True)
    values |= {"cells": cells, "rows": rows, "seconds": 65.0}
    (folder / "reproduction.json").write_text(json.dumps(values))
    return folder


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "runs")


@pytest.fixture
def make_report(capsys):
    """Runs the command in this process: (stdout, stderr)."""

    def call(*words: object) -> tuple[str, str]:
        parser = argparse.ArgumentParser()
        report.add(parser)
        report.run(parser.parse_args([str(word) for word in words]))
        captured = capsys.readouterr()
        return captured.out, captured.err

    return call


@pytest.fixture
def page_text(make_report):
    """The HTML of a report, without the scripts of plotly."""

    def call(*words: object) -> str:
        out, _ = make_report(*words, "--json")
        text = Path(json.loads(out)["report"]).read_text(encoding="utf-8")
        return text[: text.index('<script type="application/json"')]

    return call

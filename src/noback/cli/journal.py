"""noback journal: what a run's journal holds."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noback.cli.commands import add_json, say
from noback.journal import Contents, Evaluation, read_journal

HELP = "show what a run's journal holds"
DESCRIPTION = """
Show what a run's journal holds: its header, and each step's loss, slopes and other figures.

  noback journal runs/reviews-001
  noback journal runs/reviews-001 --json
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its journal file alone")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the journal and print it."""
    path = Path(arguments.run)
    contents = read_journal(path / "journal" if path.is_dir() else path)
    values = {
        "header": contents.header,
        "records": [dataclasses.asdict(record) for record in contents.steps],
        "evaluations": [_evaluation(one) for one in contents.evaluations],
        "eps_changes": [dataclasses.asdict(change) for change in contents.eps_changes],
        "bytes": contents.sound_bytes + contents.torn_bytes,
        "record_bytes": contents.record_bytes,
        "torn_bytes": contents.torn_bytes,
        "sealed": contents.sealed,
        "warning": contents.warning(),
    }
    say(arguments, values, _text(contents))


def _evaluation(one: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON holds it; the values of a readout are many, and stand in the file."""
    return {key: value for key, value in dataclasses.asdict(one).items() if key != "readout"}


def _task(header: Mapping[str, Any]) -> Any:
    """The task as it was named; where template and words were given besides, by the name that the journal has."""
    config, recorded = header["config"], header.get("task")
    own = config.get("template") is not None and config.get("words") is not None
    return recorded.get("name") if own and isinstance(recorded, dict) else config.get("task")


def _text(contents: Contents) -> str:
    header = contents.header
    config = header.get("config") or header.get("mezo", {})
    what = (
        f"model {config.get('model')}, task {_task(header)}"
        if "config" in header
        else f"an optimizer's journal {config}"
    )
    lines = [
        f"{what}, base weights {header.get('base', 'unknown')[:12]}",
        f"{len(contents.steps)} of {config.get('steps', 'any')} steps, {contents.record_bytes} bytes a record, "
        f"{contents.sound_bytes:,} bytes in all",
    ]
    warning = contents.warning()
    if warning is not None or contents.sealed:
        lines.append(warning or "sealed: the run has ended, and nothing is missing")
    if contents.torn_bytes:
        lines.append(f"the last {contents.torn_bytes} bytes are a torn record; resume drops them")
    evaluations = {one.step: one for one in contents.evaluations}
    changes = {change.step: change for change in contents.eps_changes}
    for step in range(len(contents.steps) + 1):
        if step in evaluations:
            found = evaluations[step]
            lines.append(f"after {step:6d} steps  validation score {found.score:.4f}  loss {found.loss:.4f}")
        if step in changes:
            lines.append(f"from step {step:4d}  eps {changes[step].eps:g}")
        if step < len(contents.steps):
            record = contents.steps[step]
            slopes = " ".join(f"{slope:+.4f}" for slope in record.slopes)
            named = zip(header.get("figures", ()), record.figures, strict=True)
            figures = "".join(f"  {name} {value:.4g}" for name, value in named)
            lines.append(f"step  {step:6d}  loss {record.loss:.4f}  slope {slopes}{figures}")
    return "\n".join(lines)

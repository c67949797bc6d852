"""noback train: fine-tune a model on a task."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from noback.cli.commands import add_json, add_watching, say, stopping, watching, whole_number
from noback.cli.workers import add_workers, shared_among, working

if TYPE_CHECKING:
    from noback.result import Result

HELP = "fine-tune a language model on a task, with forward passes only"
DESCRIPTION = """
Fine-tune a masked or causal language model on a task, with forward passes only.

  noback train                                      the embedded model on the embedded task: about a minute
  noback train --task sst2 --data DIR --shots 16    a folder with train and dev (or test) files
  noback train --model mini-causal --task reviews-causal        a causal model: the label word comes next
  noback train --data my.csv --template "{text} It was {mask}." --words "0=terrible,1=great"        your own labels
  noback train --lr auto                            a learning rate found by short trials before the first step
  noback train --task mine.toml --data mine.csv     the same from a file; `noback tasks new --data my.csv` writes one

The run's folder (--out) holds run.toml, the journal (a few kilobytes: with the base model, the whole fine-tune),
metrics.jsonl and snapshots. Ctrl-C loses nothing: `noback resume RUN` goes on.
Zero-shot of a causal model's label words and choices is given calibrated too: by their scores less those that the same
answers get after a prompt that says nothing (every column N/A).
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    add_config_flags(parser)
    parser.add_argument("--out", metavar="DIR", help="the run's new folder (default: runs/TASK-NUMBER)")
    add_workers(parser)
    add_watching(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train and say how it went."""
    from noback.cli.flags import config_from

    config = config_from(arguments)
    health_every, shared = whole_number("--health-every", arguments.health_every), shared_among(arguments)
    from noback.training import train

    with working(arguments), watching(arguments) as watcher, stopping() as stop:
        told = {"watcher": watcher, "stop": stop, "health_every": health_every, **shared}
        result = train(config, arguments.out, **told)
    say(arguments, dataclasses.asdict(result), summary(result))


def summary(result: Result) -> str:
    """A finished run in a few lines."""
    said, last = _tested(result)
    patience = "as evaluations brought no better weights (--patience)"
    early = f"  stopped early at step {result.steps}, {patience}\n" if result.stopped_early else ""
    measured = f"  measured on the way:\n{_listed(result.health)}" if result.health else ""
    found = f", {result.screening_forwards:,} of them to find the lr," if result.screening_forwards else ""
    return (
        f"{said}{''.join(f'  warning: {line}{chr(10)}' for line in result.warnings)}"
        f"  verdict: {result.verdict}\n{_listed(result.evidence)}{measured}"
        f"{early}"
        f"  best validation at step {result.best_step} of {result.steps}; "
        f"the last step's weights: {last} on the test set\n"
        f"  {result.forwards:,} forwards{found} in {result.seconds:.0f} s; "
        f"the journal has {result.journal_bytes:,} bytes\n"
        f"  run folder {result.run}\n"
        f'  try: noback predict {result.run} "TEXT"'
    )


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"    - {line}\n" for line in lines)


def _tested(result: Result) -> tuple[str, str]:
    """What the test set says of the base weights and the best, and of the last."""
    scores = f"{result.zero_shot_score:.3f} before, {result.best_score:.3f} after"
    if result.zero_shot is None or result.best is None or result.final is None:
        return f"{result.task}: mean test {result.metric} {scores}\n", f"{result.final_score:.3f}"
    change = (result.best - result.zero_shot) * 100
    alone = result.one_answer_score
    beside = "" if alone is None else f"; one label as the answer to everything gives {alone:.3f}"
    own = "" if result.metric in ("accuracy", "loss") else f"  {result.metric} {scores}{beside}\n"
    calibrated = "" if result.calibrated is None else f"  calibrated, zero-shot: {result.calibrated:.1%}\n"
    frozen = "" if result.frozen_readout is None else f"  readout on the untouched model: {result.frozen_readout:.1%}"
    frozen += "" if not frozen or result.linear_probe is None else f"; a linear probe: {result.linear_probe:.1%}"
    calibrated += frozen and f"{frozen}\n"
    accuracy = f"test accuracy {result.zero_shot:.1%} before, {result.best:.1%} after ({change:+.1f} points)"
    return f"{result.task}: {accuracy}\n{own}{calibrated}", f"{result.final:.1%}"

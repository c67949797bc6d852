"""noback evaluate: the accuracy of a run's weights on some data."""

from __future__ import annotations

import argparse

from noback.cli.commands import add_json, add_run, add_trust, say

HELP = "the accuracy of a run's weights on a split of some data"
DESCRIPTION = """
The accuracy of a run's weights on a split of its own data or of another's.

  noback evaluate runs/reviews-001
  noback evaluate runs/reviews-001 --at base                    before training
  noback evaluate runs/sst2-001 --data DIR --split validation
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument(
        "--data", metavar="NAME", help="a data file, a folder of split files, or hf:NAME (default: the run's)"
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="train, validation or test (default test)")
    parser.add_argument("--columns", metavar="NAMES", help="the data's columns, sentences first and the label last")
    parser.add_argument(
        "--data-changed-ok", action="store_true",
        help="evaluate on the run's own data though it has changed since; rows that were trained on are counted",
    )  # fmt: skip
    add_trust(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Evaluate and print."""
    from noback.cli.display import Display
    from noback.tuned import evaluate, tuned_run

    display = Display()
    tuned, step = tuned_run(
        arguments.run, arguments.at, model=arguments.model, device=arguments.device, watcher=display
    )
    score, notes = evaluate(
        tuned,
        arguments.data,
        arguments.split,
        arguments.columns,
        data_changed_ok=arguments.data_changed_ok,
        trust=arguments.trust,
    )
    for note in notes:
        display.note(note)
    values = {
        "run": arguments.run,
        "step": step,
        "split": arguments.split,
        "accuracy": score.accuracy,
        tuned.metric: score.score,
        "loss": score.loss,
        "examples": score.examples,
        "weights": tuned.weights.digest(),
        "notes": notes,
    }
    where = f"on {score.examples} examples ({arguments.split}), weights of step {step}"
    if score.accuracy is None:
        text = f"{tuned.metric} {score.score:.3f} {where}"
    elif tuned.metric == "accuracy":
        text = f"accuracy {score.accuracy:.1%} {where}"
    else:
        text = f"accuracy {score.accuracy:.1%} {where}; {tuned.metric} {score.score:.3f}"
    say(arguments, values, text)

"""noback evaluate: how good a run's weights are on some data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from noback.cli.commands import add_json, add_run, add_trust, aligned, places, say
from noback.counts import FIGURES, figures_of, one_answer_score, wilson
from noback.values import Score

HELP = "the metrics of a run's weights on a split of some data, and its confusion matrix"
DESCRIPTION = """
How a run's weights answer a split of its own data or of another's: the accuracy with its 95 % interval, macro F1,
balanced accuracy and MCC, which count every label alike, and how often each label was answered by each.

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
    tuned, step = tuned_run(arguments.run, arguments.at, **places(arguments), watcher=display)
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
    labels = list(tuned.task.spec.labels) if score.confusion else []
    values = {
        "run": arguments.run,
        "step": step,
        "split": arguments.split,
        "accuracy": score.accuracy,
        "interval": _interval(score),
        **(figures_of(score.confusion) if score.confusion else {}),
        tuned.metric: score.score,
        "loss": score.loss,
        "examples": score.examples,
        "labels": labels,
        "confusion": score.confusion,
        "weights": tuned.weights.digest(),
        "notes": notes,
    }
    where = f"on {score.examples} examples ({arguments.split}), weights of step {step}"
    words = [
        f"{label} ({word})" if label != word else label
        for label, word in zip(labels, tuned.task.texts, strict=bool(labels))
    ]
    say(arguments, values, "\n".join([_first_line(score, tuned.metric, where), *_table(score, words)]))


def _interval(score: Score) -> list[float] | None:
    """The 95 % interval of the accuracy; a reward has none."""
    if score.accuracy is None:
        return None
    found = wilson(score.accuracy, score.examples)
    return [found.low, found.high]


def _first_line(score: Score, metric: str, where: str) -> str:
    if score.accuracy is None:
        return f"{metric} {score.score:.3f} {where}"
    found = wilson(score.accuracy, score.examples)
    told = {"accuracy", "loss", *(FIGURES if score.confusion else ())}
    alone = one_answer_score(score.confusion, metric)
    beside = "" if alone is None else f" (one label as the answer to everything gives {alone:.3f})"
    own = "" if metric in told else f"; {metric} {score.score:.3f}{beside}"
    return f"accuracy {score.accuracy:.1%} {where}{own}; 95% interval {found.low:.1%} to {found.high:.1%}"


def _table(score: Score, words: Sequence[str]) -> list[str]:
    """The metrics that count every label alike, and how often each label was answered by each."""
    if not score.confusion:
        return []
    found = figures_of(score.confusion)
    rows = [[name, *map(str, row), str(sum(row))] for name, row in zip(words, score.confusion, strict=True)]
    return [
        f"macro F1 {found['macro_f1']:.3f}, balanced accuracy {found['balanced_accuracy']:.1%}, "
        f"MCC {found['mcc']:.3f}, loss {score.loss:.3f}",
        "answers (columns) to the examples of each label (rows):",
        *(f"  {line}" for line in aligned(["", *words, "examples"], rows)),
    ]

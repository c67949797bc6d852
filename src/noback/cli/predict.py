"""noback predict: label texts with a run's weights."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from noback.cli.commands import add_json, add_run, say

HELP = "answer texts with a run's weights"
DESCRIPTION = """
Answer texts with a run's weights: each label with its label word and probability; each of a row's own choices; or, for
a task of written answers, what the model writes.

  noback predict runs/reviews-001 "a lovely little film" "two hours I will not get back"
  noback predict runs/rte-001 $'A man sleeps.\\tA man is awake.'     a task of two sentences: a tab between them
  noback predict runs/copa-001 $'It rained.\\teffect\\tI got wet.\\tI ate.'    choices come after the sentences
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a text; several sentences of one example are parted by a tab"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Predict and print."""
    from noback.cli.display import Display
    from noback.tuned import generate, predict, tuned_run

    tuned, _ = tuned_run(arguments.run, arguments.at, model=arguments.model, device=arguments.device, watcher=Display())
    spec = tuned.task.spec
    several = len(spec.sentences) > 1 or spec.answer == "choices"
    texts = [tuple(text.split("\t")) if several else text for text in arguments.texts]
    if spec.answer == "text":
        written = generate(tuned, texts)
        answers = [{"text": text, "answer": answer} for text, answer in zip(arguments.texts, written, strict=True)]
        say(arguments, {"run": arguments.run, "predictions": answers}, "\n".join(written))
        return
    predictions = [
        {"text": text, "label": max(chances, key=lambda label: chances[label]), "probabilities": chances}
        for text, chances in zip(arguments.texts, predict(tuned, texts), strict=True)
    ]
    words = dict(zip(spec.labels, tuned.task.texts, strict=True))
    say(arguments, {"run": arguments.run, "predictions": predictions}, "\n".join(_lines(predictions, words)))


def _lines(predictions: list[dict[str, Any]], words: Mapping[str, str]) -> list[str]:
    lines = []
    for prediction in predictions:
        chances = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])
        shown = "  ".join(f"{_named(label, words.get(label, label))} {chance:.1%}" for label, chance in chances)
        lines.append(f"{shown}  {prediction['text']!r}")
    return lines


def _named(label: str, word: str) -> str:
    """A label and its label word; a head and a choice have none."""
    return label if word == label else f"{label} ({word})"

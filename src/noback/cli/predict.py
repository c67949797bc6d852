"""noback predict: answer texts, or the rows of a file, with a run's weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noback.cli.commands import add_json, add_run, places, say
from noback.cli.predict_rows import STREAM, answer_rows
from noback.errors import InputError, printable, shown

if TYPE_CHECKING:
    from noback.predictions import Answer, Asked
    from noback.run import Run
    from noback.tasks import TaskSpec

HELP = "answer texts, or the rows of a file, with a run's weights"
DESCRIPTION = """
Answer texts with a run's weights: each label with its label word and probability; each of a row's own choices; or, for
a task of written answers, what the model writes.

  noback predict runs/reviews-001 "a lovely little film" "two hours I will not get back"
  noback predict runs/rte-001 $'A man sleeps.\\tA man is awake.'     a task of two sentences: a tab between them
  noback predict runs/copa-001 $'It rained.\\teffect\\tI got wet.\\tI ate.'    choices come after the sentences
  noback predict runs/reviews-001 - < texts.txt                      one text a line, from stdin

With --data, answer every row of a file and write it with its answer beside its own columns:

  noback predict runs/reviews-001 --data reviews.csv --out answers.csv
  noback predict runs/reviews-001 --data reviews.jsonl.gz --out answers.tsv --columns text
  zcat reviews.csv.gz | noback predict runs/reviews-001 --data - --out - > answers.csv

New columns: prediction, and a probability_LABEL for each label (of a row's own choices: prediction_index, counted from
0, and the list probabilities). Rows need no label. They are answered as they are read, so a file may be larger than the
memory. --out is written under another name and renamed at the end: what stops halfway leaves nothing there. A bad row
ends the command; a file is read through before its first row is answered, so that one is found at once.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.usage = "%(prog)s [OPTIONS] RUN (TEXT [TEXT ...] | - | --data FILE [--out FILE])"
    add_run(parser)
    texts = parser.add_argument(
        "texts", nargs="+", metavar="TEXT", default=[],
        help="a text; several sentences of one example are parted by a tab; - reads texts from stdin, one a line",
    )  # fmt: skip
    texts.required = False  # with nargs="*", a text that comes after a flag would not be taken
    parser.add_argument(
        "--data", metavar="FILE", help="rows to answer: .csv, .tsv or .jsonl, plain or .gz; - for stdin"
    )
    parser.add_argument(
        "--out", metavar="FILE",
        help="where rows and answers go, in the form that the ending names: .csv, .tsv or .jsonl, plain or .gz "
        "(default -: stdout)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace --out if it exists")
    parser.add_argument(
        "--columns", metavar="NAMES",
        help="the data's columns where they are not those of the training data: sentences first, then choices; the "
        "label's name may follow",
    )  # fmt: skip
    parser.add_argument(
        "--prefix", metavar="NAME", help="begin the names of the new columns with this, if the data has such names"
    )
    parser.add_argument("--stdin-format", metavar="NAME", help="how --data - is read: csv (the default), tsv or jsonl")
    parser.add_argument(
        "--stdout-format", metavar="NAME", help="how --out - is written: csv, tsv or jsonl (default: as the data)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Predict and print, or write."""
    if arguments.data is not None:
        return answer_rows(arguments)
    _check_texts(arguments)
    return _answer_texts(arguments)


def _check_texts(arguments: argparse.Namespace) -> None:
    """Refuse flags of --data without it, and a data file's name in place of a text."""
    from noback.tasks import ending_of, is_data_file

    if not arguments.texts:
        raise InputError("there is nothing to answer; give texts, - for texts from stdin, or --data FILE")
    flags = {name: getattr(arguments, name) for name in ("out", "columns", "prefix", "stdin_format", "stdout_format")}
    given = [name for name, value in {**flags, "overwrite": arguments.overwrite or None}.items() if value is not None]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} is for rows: name their file with --data")
    for text in arguments.texts:
        if is_data_file(text):
            raise InputError(
                f"{shown(text)} is a data file's name, not a text; to answer its rows say --data {text} "
                "(a text that reads like this can come from stdin: -)"
            )
        if ending_of(Path(text)):
            print(
                printable(f"noback: {shown(text)} is answered as a text; the rows of a file are answered with --data"),
                file=sys.stderr,
            )


def _answer_texts(arguments: argparse.Namespace) -> None:
    """Answer the texts of the command line, or of stdin as they come."""
    from noback.cli.display import Display
    from noback.predictions import answered, asked_texts
    from noback.tuned import tuned_run

    display = Display()
    tuned, _ = tuned_run(arguments.run, arguments.at, **places(arguments), watcher=display)
    spec, words = tuned.task.spec, dict(zip(tuned.task.spec.labels, tuned.task.texts, strict=True))
    predictions = []
    asked: Iterable[Asked] = asked_texts(tuned.task, _texts(arguments.texts))
    if STREAM not in arguments.texts:
        asked = list(asked)  # one that cannot be asked refuses them all
    found = False
    for one, answer in answered(tuned, asked, at_once=_at_once(tuned, arguments.texts)):
        found = True
        prediction = _prediction(one.row["text"], answer, spec)
        if arguments.json:
            predictions.append(prediction)
            display.progress("answering texts", len(predictions), 0)
        else:
            print(printable(_line(prediction, words)), flush=True)
    display.close()
    if not found:
        raise InputError("stdin holds no text to answer; expected one a line")
    if arguments.json:
        say(arguments, {"run": arguments.run, "predictions": predictions}, "")


def _texts(given: list[str]) -> Iterator[str]:
    """The texts, and in the place of - the lines of stdin that are not empty."""
    from noback.tasks import lines_of

    for text in given:
        if text == STREAM:
            yield from (line.rstrip("\r\n") for line in lines_of(sys.stdin.buffer, "stdin") if line.strip())
        else:
            yield text


def _at_once(tuned: Run, given: list[str]) -> int | None:
    """How many texts are waited for: of those that a person types, one."""
    if STREAM not in given:
        return None
    return 1 if sys.stdin.isatty() else tuned.config.batch


def _prediction(text: str, answer: Answer, spec: TaskSpec) -> dict[str, Any]:
    if spec.answer == "text":
        return {"text": text, "answer": answer.text}
    chances = dict(zip(answer.options, answer.chances, strict=True))
    return {"text": text, "label": answer.text, "probabilities": chances}


def _line(prediction: dict[str, Any], words: Mapping[str, str]) -> str:
    if "answer" in prediction:
        return str(prediction["answer"])
    chances = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])
    shown_ones = "  ".join(f"{_named(label, words.get(label, label))} {chance:.1%}" for label, chance in chances)
    return f"{shown_ones}  {prediction['text']!r}"


def _named(label: str, word: str) -> str:
    """A label and its label word; a head and a choice have none."""
    return label if word == label else f"{label} ({word})"

"""noback compare: one task under several objectives."""

from __future__ import annotations

import argparse
from typing import Any

from noback.cli.commands import add_json, add_log_to, aligned, listed, say, stopping, watching

HELP = "train one task under several objectives and show which of them give a signal"
DESCRIPTION = """
Train one task under several objectives, with the same data, seeds and number of forwards, and show which of them give
a signal: the share of slopes that are exactly zero, the mean size of all slopes (zeros count), and the accuracy before
and after. Each row says what it tunes: a fresh head has no place under LoRA or a prefix, and is tuned with all weights.

  noback compare --steps 150                                         the embedded task: about six minutes
  noback compare --task sst2 --data DIR --shots 512 --steps 500 --lr 1e-5
  noback compare --objectives cross_entropy,accuracy --eps 1e-2,1e-3,1e-4

Objectives: cross_entropy, accuracy, macro_f1 or your own module:function over the label words; the same after `head/`
over a fresh classification head. Each becomes an ordinary run in a folder inside --out, next to comparison.json;
the test set is cut to hold each label equally often. Ctrl-C loses nothing: `noback resume DIR` goes on.
`noback report DIR` draws it.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    parser.add_argument(
        "--objectives", metavar="NAMES",
        help="comma-separated (default: cross_entropy,accuracy,head/cross_entropy,head/accuracy)",
    )  # fmt: skip
    add_config_flags(parser, several_eps=True)
    parser.add_argument("--out", metavar="DIR", help="the comparison's new folder (default: runs/TASK-compare-NUMBER)")
    add_log_to(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Compare and print the table."""
    from noback.cli.flags import config_from, numbers

    eps = numbers("eps", getattr(arguments, "estimator.eps"))
    setattr(arguments, "estimator.eps", str(eps[0]) if eps else None)
    config = config_from(arguments)
    from noback.comparing import COMPARED, compare

    names = listed("--objectives", arguments.objectives) or COMPARED
    with watching(arguments) as watcher, stopping() as stop:
        table = compare(config, names, eps, arguments.out, watcher=watcher, stop=stop)
    say(arguments, table, text(table))


def text(table: dict[str, Any]) -> str:
    """The comparison as people read it."""
    heads = (
        "objective", "tuned", "weights tuned", "lr", "eps", "zero slopes", "mean |slope| of all", "smallest", "largest",
        "loss first", "last", "accuracy before", "at the end", "forwards", "seconds", "verdict",
    )  # fmt: skip
    rows = [
        (
            row["objective"], row.get("tuned", "-"), _or_dash(row.get("tuned_weights"), ","),
            _or_dash(row.get("lr"), "g"), f"{row['eps']:g}", f"{row['zero_slope_share']:.1%}",
            f"{row['mean_abs_slope']:.3g}", f"{row['min_abs_slope']:.2g}", f"{row['max_abs_slope']:.3g}",
            _or_dash(row["first_loss"], ".3f"), _or_dash(row["last_loss"], ".3f"),
            _or_dash(row["before"], ".1%"), _or_dash(row["after"], ".1%"),
            f"{row['forwards']:,}", f"{row['seconds']:.0f}", row["verdict"],
        )
        for row in table["rows"]
    ]  # fmt: skip
    examples = table["rows"][0]["examples"]
    return "\n".join(
        [
            f"{table['task']}: {table['steps']} steps of {table['batch']} examples each; "
            f"accuracy on {examples} test examples, each label equally often",
            *aligned(heads, rows),
            *([table["tuned_note"]] if table.get("tuned_note") else []),
            *_conclusion(table["folder"]),
            f"saved in {table['folder']}; see it with: noback report {table['folder']}",
        ]
    )


def _conclusion(folder: str) -> list[str]:
    """Which objective won, and why one may say so, from the runs' folders."""
    from noback.reporting import read_subject
    from noback.reporting.comparison import concluded

    subject = read_subject([folder])
    found = concluded(subject.table, subject.runs) if subject.table else None
    return [found.word, *(f"  - {line}" for line in found.evidence)] if found else []


def _or_dash(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)

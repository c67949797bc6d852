"""noback sweep: one run for each combination of some options' values."""

from __future__ import annotations

import argparse
from typing import Any

from noback.cli.commands import add_json, add_log_to, aligned, say, stopping, watching
from noback.flag_names import FLAGS

HELP = "train with several values of lr, eps, seed or other options, and choose by validation"
DESCRIPTION = """
Train once for each combination of the values that some options are given, separated by commas, and choose the setting
with the highest mean validation score over the seeds; of equal ones, that with the lower mean validation loss.

  noback sweep --lr 1e-6,1e-5 --eps 1e-3,1e-2 --seed 0,1
  noback sweep --adapter full,lora --steps 100,200
  noback sweep --set estimator.directions=1,4 --lr 1e-5,2e-5 --out runs/mine

Any option that is a number, or one of some names, takes a list. Each combination becomes an ordinary run in a folder
inside --out, next to sweep.json; the model's files are opened once. A run that diverges is a row and ends nothing.
Stopped or killed, the same command goes on: finished runs are read, begun ones resumed; `noback resume DIR` does too.
The test set is answered for each run, and has no say in the choice. `noback report DIR` draws it.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    add_config_flags(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="the sweep's folder (default: runs/TASK-sweep- and a digest of what is swept over)"
    )
    add_log_to(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Sweep and print the table."""
    from noback.cli.flags import config_from
    from noback.cli.lists import taken_lists

    over = taken_lists(arguments)
    config = config_from(arguments)
    from noback.sweeping import sweep

    with watching(arguments) as watcher, stopping() as stop:
        table = sweep(config, over, arguments.out, watcher=watcher, stop=stop)
    say(arguments, table, text(table))


def text(table: dict[str, Any]) -> str:
    """The sweep as people read it."""
    names = [path for path in table["over"] if path != "seed"]
    heads = (
        *([*map(_name, names)] or ["setting"]), "seeds", "validation", "validation loss", "test before", "after",
        "diverged",
    )  # fmt: skip
    rows = [
        (
            *([_value(entry["setting"][name]) for name in names] or ["as given"]), str(entry["ended"]),
            _mean(entry, "validation"), _mean(entry, "validation_loss"), _mean(entry, "before"), _mean(entry, "test"),
            str(entry["diverged"]),
        )
        for entry in table["settings"]
    ]  # fmt: skip
    seeds = len(table["over"].get("seed", [0]))
    return "\n".join(
        [
            f"{table['task']}: {len(table['rows'])} runs of {table['steps']} steps; mean (deviation) over {seeds} "
            f"seed{'s' * (seeds != 1)}, metric {metric_of(table)}",
            *aligned(heads, rows),
            *_won(table["winner"]),
            f"saved in {table['folder']}; see it with: noback report {table['folder']}",
        ]
    )


def metric_of(table: dict[str, Any]) -> str:
    """What the runs were judged by."""
    return next((str(row["metric"]) for row in table["rows"] if "metric" in row), str(table["metric"]))


def _won(winner: dict[str, Any] | None) -> list[str]:
    if winner is None:
        return ["no setting has a result for each of its seeds, so none is chosen"]
    named = ", ".join(f"{_name(path)} {_value(value)}" for path, value in winner["setting"].items()) or "as given"
    return [f"best by validation: {named}", f"repeat it: {winner['command']}"]


def _name(path: str) -> str:
    """An option as its flag has it, where it has one."""
    return next((flag[2:] for flag, place in FLAGS.items() if place == path), path)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mean(entry: dict[str, Any], key: str) -> str:
    mean, std = entry[key], entry[f"{key}_std"]
    return "-" if mean is None else f"{mean:.3f}" + ("" if std is None else f" ({std:.3f})")

"""noback epsilon: what eps does to the slopes, without training."""

from __future__ import annotations

import argparse
from typing import Any

from noback.cli.commands import add_json, aligned, listed, say, stopping, watching, whole_number

HELP = "measure what eps does to the slopes, without training, and recommend one"
DESCRIPTION = """
Measure, without training, what eps does to the slopes: how many are not zero, how large all of them are on average
(zeros count), whether they agree with those at a reference eps (--eps), and how much curvature they hold. Directions
and examples are the same at each eps. At the end, the eps to use for each objective, and why.

  noback epsilon                                         the embedded task: about two minutes
  noback epsilon --task sst2 --data DIR --shots 512
  noback epsilon --at 1e-3,3e-3,1e-2 --objectives accuracy,macro_f1,head/cross_entropy
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    parser.add_argument("--at", metavar="LIST", help="the eps to measure (default: 1e-5,1e-4,1e-3,1e-2,1e-1)")
    parser.add_argument("--objectives", metavar="NAMES", help="comma-separated (default: cross_entropy,accuracy)")
    parser.add_argument("--probes", metavar="N", help="directions, each with a batch of its own (default 32)")
    add_config_flags(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="a new folder for epsilon.json (default: runs/TASK-epsilon-NUMBER)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print the table."""
    from noback.cli.flags import config_from, numbers

    eps, probes = numbers("--at", arguments.at), whole_number("--probes", arguments.probes, 2**16)
    config = config_from(arguments)
    from noback.measuring_eps import EPS, MEASURED, measure_eps

    names = listed("--objectives", arguments.objectives) or MEASURED
    with watching(arguments) as watcher, stopping() as stop:
        table = measure_eps(
            config, eps or EPS, names, directions=probes or 32, out=arguments.out, watcher=watcher, stop=stop
        )
    say(arguments, table, text(table))


def text(table: dict[str, Any]) -> str:
    """The table as people read it."""
    heads = (
        "objective",
        "eps",
        "non-zero",
        "mean |slope| of all",
        "agreement",
        "same sign",
        "curvature",
        "mean |curvature|",
    )
    rows = [
        (
            row["objective"], f"{row['eps']:g}", f"{row['nonzero_share']:.0%}", f"{row['mean_abs_slope']:.3g}",
            "-" if row["agreement"] is None else f"{row['agreement']:.3f}", f"{row['same_sign']:.0%}",
            f"{row['curvature']:+.2e}", f"{row['mean_abs_curvature']:.2e}",
        )
        for row in table["rows"]
    ]  # fmt: skip
    advice = [
        f"{one['objective']}: {'no eps of these' if one['eps'] is None else format(one['eps'], 'g')}: {one['reason']}"
        for one in table["recommendations"]
    ]
    return "\n".join(
        [
            f"{table['task']}: {table['directions']} directions, {table['batch']} examples each; agreement is with "
            f"eps {table['reference']:g}; {table['forwards']:,} forwards in {table['seconds']:.0f} s",
            *aligned(heads, rows),
            *advice,
            f"saved in {table['folder']}; see it with: noback report {table['folder']}",
        ]
    )

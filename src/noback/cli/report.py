"""noback report: runs as one page that opens anywhere."""

from __future__ import annotations

import argparse
import sys

from noback.cli.commands import add_json, say
from noback.errors import printable

HELP = "make a page of one or several runs, or a Markdown summary"
DESCRIPTION = """
Make one HTML file of a run, of several runs side by side, or of a comparison: the verdict, the accuracy before and
after, the curves, the health, the mistakes, and the command to repeat it. It opens anywhere, without a network.

  noback report runs/reviews-001
  noback report runs/reviews-001 runs/reviews-002 --out both.html
  noback report runs/reviews-001 --markdown
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run's folder, or one folder of a comparison, a sweep, an eps table or a reproduction",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="where to write (default: report.html in the folder; of several runs, right here)"
    )
    parser.add_argument("--markdown", action="store_true", help="print a summary as Markdown instead of making a page")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the runs, then write the page or print the summary."""
    from noback.reporting import report

    made = report(*arguments.runs, out=arguments.out, markdown=arguments.markdown)
    for path in made.repeated:
        print(f"{printable(path)} was given before; it is shown once", file=sys.stderr)
    values = {
        "report": str(made.path) if made.path is not None else None,
        "kind": made.kind,
        "runs": made.runs,
        "states": made.states,
        "verdicts": made.verdicts,
    }
    if arguments.markdown:
        say(arguments, {**values, "markdown": made.text}, made.text.rstrip("\n"))
    else:
        say(arguments, values, f"the report is in {made.path}; open it in any browser")

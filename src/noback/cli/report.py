"""noback report: runs as one page that opens anywhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    from noback.flag_names import FLAGS
    from noback.reporting import check_place, html, markdown, page_of, read_subject, write_report

    out = Path(arguments.out) if arguments.out is not None else None
    if out is not None:
        check_place(out)
    subject = read_subject(arguments.runs)
    for path in subject.repeated:
        print(f"{printable(str(path))} was given before; it is shown once", file=sys.stderr)
    if out is None and not arguments.markdown:
        out = Path("report.html") if len(subject.paths) > 1 else subject.paths[0] / "report.html"
    page = page_of(subject, FLAGS)
    text = markdown(page) if arguments.markdown else html(page)
    if out is not None:
        write_report(out, text)
    values = {
        "report": str(out) if out is not None else None,
        "kind": subject.kind,
        "runs": [run.name for run in subject.runs],
        "states": [run.state for run in subject.runs],
        "verdicts": [run.judged().word for run in subject.runs],
    }
    if arguments.markdown:
        say(arguments, {**values, "markdown": text}, text.rstrip("\n"))
    else:
        say(arguments, values, f"the report is in {out}; open it in any browser")

"""The report of runs, made and written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from noback.errors import InputError
from noback.flag_names import FLAGS
from noback.reporting.markdown import markdown as markdown_of
from noback.reporting.page import html
from noback.reporting.subjects import page_of, read_subject
from noback.reporting.writing import check_place, write_report


@dataclass(frozen=True, slots=True)
class Report:
    """A report of one or several runs, and what it says of each."""

    path: Path | None  # where it was written; None: nowhere
    text: str  # HTML, or Markdown where that was asked for
    kind: str
    runs: tuple[str, ...]
    states: tuple[str, ...]
    verdicts: tuple[str, ...]
    repeated: tuple[str, ...]  # folders that were given more than once


def report(*runs: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, markdown: bool = False) -> Report:
    """Make one HTML file of a run, of several, of a comparison or of an eps table, as `noback report` does.

    `out`: where to write; none: `report.html` in the folder, or, of several runs, right here. With `markdown` the text
    is a summary in Markdown, which is written only where `out` is given.
    """
    if not runs:
        raise InputError("there is no run to report; expected the folder of one: noback.report('runs/reviews-001')")
    place = None if out is None else Path(out)
    if place is not None:
        check_place(place)
    subject = read_subject([os.fspath(run) for run in runs])
    if place is None and not markdown:
        place = Path("report.html") if len(subject.paths) > 1 else subject.paths[0] / "report.html"
    page = page_of(subject, FLAGS)
    text = markdown_of(page) if markdown else html(page)
    if place is not None:
        write_report(place, text)
    return Report(
        path=place,
        text=text,
        kind=subject.kind,
        runs=tuple(run.name for run in subject.runs),
        states=tuple(run.state for run in subject.runs),
        verdicts=tuple(run.judged().word for run in subject.runs),
        repeated=subject.repeated,
    )

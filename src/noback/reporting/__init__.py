"""The report of runs: one HTML file that opens anywhere, or a Markdown text; it needs no torch and no network."""

from noback.reporting.blocks import Page
from noback.reporting.making import Report, report
from noback.reporting.markdown import markdown
from noback.reporting.page import html
from noback.reporting.subjects import Subject, page_of, read_subject
from noback.reporting.writing import check_place, write_report

__all__ = [
    "Page",
    "Report",
    "Subject",
    "check_place",
    "html",
    "markdown",
    "page_of",
    "read_subject",
    "report",
    "write_report",
]

"""The report of runs: one HTML file that opens anywhere, or a Markdown text; it needs no torch and no network."""

from noback.report.blocks import Page
from noback.report.markdown import markdown
from noback.report.page import html
from noback.report.subjects import Subject, page_of, read_subject
from noback.report.writing import check_place, write_report

__all__ = ["Page", "Subject", "check_place", "html", "markdown", "page_of", "read_subject", "write_report"]

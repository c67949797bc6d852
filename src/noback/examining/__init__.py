"""Examining an inference server: whether it can do a run's work, line by line."""

from noback.examining.examination import Found, examine, find
from noback.examining.lines import Line

__all__ = ["Found", "Line", "examine", "find"]

"""A page's summary as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from noback.reporting.blocks import Block, Cell, Command, Judgement, Note, Page, Section, Table


def markdown(page: Page) -> str:
    """The title and the sections that belong to the summary; charts and large figures stay with the page."""
    parts = [f"# {escaped(page.title)}", escaped(page.lead), escaped(page.state)]
    for section in page.sections:
        if section.in_summary:
            parts += _section(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, on one line, also in a table."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(text.split()))


def _section(section: Section) -> list[str]:
    blocks = [text for block in section.blocks if (text := _block(block))]
    return [f"## {escaped(section.title)}", *blocks] if blocks else []


def _block(block: Block) -> str:
    if isinstance(block, Judgement):
        measured = ["", "Measured on the way:", "", *_listed(block.measured)] if block.measured else []
        return "\n".join([f"**{escaped(block.word)}**", "", *_listed(block.evidence), *measured])
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Note):
        return escaped(block.text)
    return _fenced(block.text) if isinstance(block, Command) else ""


def _listed(lines: Iterable[str]) -> list[str]:
    return [f"- {escaped(line)}" for line in lines]


def _table(table: Table) -> str:
    head = table.head or ("",) * (len(table.rows[0]) if table.rows else 0)
    numeric = [cell.numeric for cell in table.rows[0]] if table.rows else [False] * len(head)
    lines = [_row([Cell(title) for title in head]), "|" + "|".join("---:" if one else "---" for one in numeric) + "|"]
    caption = [f"{escaped(table.caption)}:", ""] if table.caption else []
    return "\n".join([*caption, *lines, *(_row(row) for row in table.rows)])


def _row(cells: tuple[Cell, ...] | list[Cell]) -> str:
    texts = (" · ".join(one.text for one in (cell, *cell.beneath) if one.text) for cell in cells)
    return "| " + " | ".join(map(escaped, texts)) + " |"


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"

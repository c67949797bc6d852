"""What a report is made of: sections of blocks, which the page and the Markdown text show each in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Cell:
    """A text; where it is a figure, also the exact number and the name by which it can be found."""

    text: str
    value: float | None = None
    name: str = ""
    share: float | None = None  # how strongly the cell is tinted, 0 to 1; None: it is not
    numeric: bool = False
    beneath: tuple[Cell, ...] = ()  # quieter lines under the text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a head."""

    kind: ClassVar[str] = "table"

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    first_is_head: bool = False  # the first cell names its row


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure as JSON, with its title in words."""

    name: str
    title: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side; the legend names the runs or objectives in the order of their colours."""

    kind: ClassVar[str] = "charts"

    charts: tuple[Chart, ...]
    legend: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stat:
    """One large figure."""

    title: str
    cell: Cell
    note: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """A few large figures."""

    kind: ClassVar[str] = "stats"

    stats: tuple[Stat, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and why one may say so, and what else was measured on the way."""

    kind: ClassVar[str] = "judgement"

    word: str
    evidence: tuple[str, ...]
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence; one that warns is shown so."""

    kind: ClassVar[str] = "note"

    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A line for the shell, in parts that are best not broken."""

    kind: ClassVar[str] = "command"

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole line."""
        return " ".join(self.parts)


Block = Table | Charts | Stats | Judgement | Note | Command


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; the Markdown text holds only the sections that belong to the summary."""

    title: str
    blocks: tuple[Block, ...]
    in_summary: bool = False
    level: int = 2


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    state: str
    sections: tuple[Section, ...]

    def charts(self) -> list[Chart]:
        """Every chart of the page."""
        blocks: list[Any] = [block for section in self.sections for block in section.blocks]
        return [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]

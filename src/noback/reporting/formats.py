"""Numbers as people read them, each also as a cell that keeps the exact number."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from noback.json_text import number_in
from noback.reporting.blocks import Cell

NOTHING = "-"


def percent(share: float) -> str:
    """A share with one decimal."""
    return f"{share:.1%}"


def short(value: float) -> str:
    """Three significant digits, whole numbers whole."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def plain(value: float) -> str:
    """As few digits as the number itself has."""
    return f"{value:g}"


def scientific(value: float) -> str:
    """Two significant digits and a power of ten; zero is zero."""
    return f"{value:.1e}" if value else "0"


def signed(value: float) -> str:
    """A small change with its sign."""
    return f"{value:+.2e}" if value else "0"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def memory(size: float) -> str:
    """Bytes in binary units."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def moment(seconds: float) -> str:
    """Unix seconds as a date and a time that read the same everywhere."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return NOTHING


def figure(value: float | None, shown: Callable[[float], str] = short, name: str = "") -> Cell:
    """A cell for a number, or a dash."""
    return Cell(NOTHING if value is None else shown(value), value, name, numeric=True)


def figure_in(table: Mapping[str, Any], key: str, shown: Callable[[float], str] = short, name: str = "") -> Cell:
    """A cell for the number under a key, or a dash."""
    return figure(number_in(table, key), shown, name)

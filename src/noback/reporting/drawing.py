"""What every chart shares: the page's colours by name, axes with a title, and text that plotly must not interpret.

A colour is a variable of the page's style, such as var(--series-1); the page's script puts the theme's value in.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from noback.health import SLOPE_UNIT

SLOPE = f"slope ({SLOPE_UNIT})"  # (l+ - l-) / (2 eps): eps counts in units of the direction
SERIES = 8  # colours; then they come again, dashed
_LONGEST = 26  # characters of a name beside a chart; a phone is narrow
_DASHES = ("solid", "dash", "dot", "dashdot")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def colour(index: int) -> str:
    """The colour of the run or objective at this place."""
    return f"var(--series-{index % SERIES + 1})"


def dash(index: int) -> str:
    """The line that tells colours apart that are used again."""
    return _DASHES[index // SERIES % len(_DASHES)]


def group(index: int) -> str:
    """What the page's legend hides and shows together."""
    return f"series-{index}"


def literal(text: str) -> str:
    """A text that plotly shows as it is: it takes tags and entities for markup."""
    return html.escape(text, quote=False)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis in the page's colours."""
    look = {
        "gridcolor": "var(--grid)", "linecolor": "var(--axis)", "zerolinecolor": "var(--axis)", "zerolinewidth": 1,
        "tickcolor": "var(--axis)", "automargin": True,
    }  # fmt: skip
    return {"title": {"text": title, "standoff": 8}, **look, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of shares."""
    return axis(title, tickformat=".0%", hoverformat=".2%", **more)


def log_axis(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """An axis in powers of ten, with as many ticks as fit what is drawn along it (above zero)."""
    known = [math.log10(value) for value in values if value]
    decades = max(known, default=0.0) - min(known, default=0.0)
    return axis(title, type="log", exponentformat="e", dtick=max(math.ceil(decades / 6), 1))


def name_axis(names: Sequence[str]) -> dict[str, Any]:
    """An axis of names from top to bottom: the first at height 0, the next at -1."""
    heights = [-index for index in range(len(names))]
    texts = [literal(name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…") for name in names]
    return axis("", tickvals=heights, ticktext=texts, range=[0.6 - len(names), 0.6], showgrid=False, zeroline=False)


def name_height(names: int) -> int:
    """The height of a chart of so many names."""
    return max(120 + 40 * names, 200)


def drawn(traces: Sequence[Any], x: dict[str, Any], y: dict[str, Any], height: int = 280, **more: Any) -> str:
    """A figure as JSON."""
    layout = {
        "template": "none", "height": height, "margin": {"l": 56, "r": 16, "t": 28, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "hovermode": "closest",
        "font": {"family": _FONT, "size": 12, "color": "var(--text-soft)"}, "xaxis": x, "yaxis": y, "showlegend": False,
        "hoverlabel": {
            "namelength": -1, "bgcolor": "var(--surface)", "bordercolor": "var(--axis)",
            "font": {"family": _FONT, "color": "var(--text)"},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--text-faint)", "activecolor": "var(--text)"},
        **more,
    }  # fmt: skip
    return str(go.Figure(list(traces), layout).to_json())


def legend_above() -> dict[str, Any]:
    """A legend inside a chart, above its curves."""
    return {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}}

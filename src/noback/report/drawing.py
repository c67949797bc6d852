"""What every chart shares: the page's colours by name, axes with a title, and text that plotly must not interpret.

A colour is a variable of the page's style, such as var(--series-1); the page's script puts the theme's value in.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

SERIES = 8  # colours; then they come again, dashed
_DASHES = ("solid", "dash", "dot", "dashdot")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def colour(index: int) -> str:
    """The colour of the run or objective at this place."""
    return f"var(--series-{index % SERIES + 1})"


def dash(index: int) -> str:
    """The line that tells colours apart that are used again."""
    return _DASHES[index // SERIES % len(_DASHES)]


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


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis in powers of ten."""
    return axis(title, type="log", exponentformat="power", dtick=1, **more)


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

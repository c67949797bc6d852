"""A page as one HTML file that needs nothing else: style, script, charts and text."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from noback.reporting.blocks import Page

_TEMPLATES = Path(__file__).parent / "templates"


def html(page: Page) -> str:
    """The page as HTML; every text in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    scripts = [_script(get_plotlyjs()), _script((_TEMPLATES / "charts.js").read_text(encoding="utf-8"))]
    return environment.get_template("page.html").render(
        page=page,
        style=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),  # noqa: S704 (a file of this package)
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        figures=_figures(page),
    )


def _script(text: str) -> Markup:
    """A script that cannot end its element early."""
    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))  # noqa: S704


def _hash(script: str) -> str:
    """What the page's security policy knows a script by: no other one runs."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _figures(page: Page) -> Markup:
    """The charts by name, as JSON that no HTML parser can mistake for markup."""
    inner = ",".join(f'"{chart.name}":{chart.figure}' for chart in page.charts())
    text = "{" + inner + "}"
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704

"""What ships with noback: the default model and the default task's data."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

MODELS = {"mini": _HERE / "mini"}
DATA = {"reviews": _HERE / "reviews"}

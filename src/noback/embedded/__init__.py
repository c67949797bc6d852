"""What ships with noback: the default models and the default task's data."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

MODELS = {"mini": _HERE / "mini", "mini-causal": _HERE / "mini-causal"}
DATA = {"reviews": _HERE / "reviews", "reviews-causal": _HERE / "reviews"}

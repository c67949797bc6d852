"""Clipping: a slope far beyond the others of its step is mostly one example's noise, and is cut."""

from __future__ import annotations

from typing import Any

CLIP_HELP = "cut a step's slopes at so many times the median of their absolute values; none: keep them"


def clipped(slopes: Any, clip: float | None) -> Any:
    """A step's slopes, none beyond `clip` medians of their absolute values; none: as they are.

    Where the median is zero, as with an objective of many ties, it says nothing of the others, and nothing is cut.
    `slopes` is float64 [directions], NumPy's or torch's: only operators and methods that both have are used.
    """
    if clip is None:
        return slopes
    sizes = abs(slopes)
    ordered = sizes[sizes.argsort()]  # NumPy's and torch's own medians differ for an even number
    count = len(sizes)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    limit = clip * median + (median == 0) * ordered[-1]
    return slopes.clip(-limit, limit)

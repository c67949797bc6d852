"""The table: what was measured as figures a step, and the ratios between contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noback.bench.case import CONTENDERS, BenchCase
from noback.bench.measuring import Measured


def rows(found: Mapping[str, Measured], ways: Sequence[str], case: BenchCase) -> list[dict[str, Any]]:
    """A row for each contender that takes part; one of which nothing was seen says why."""
    seen = {name: found.get(name, Measured(gap="stopped")) for name in CONTENDERS[1:]}
    way = best_way(found, ways)
    seen = {CONTENDERS[0]: _forwards(found, ways, way), **seen}
    seen = {name: one for name, one in seen.items() if name not in case.without}
    return [_row(name, one, seen, way, case) for name, one in seen.items()]


def way_rows(found: Mapping[str, Measured], ways: Sequence[str]) -> list[dict[str, Any]]:
    """Each way of running two plain forwards: its time, its memory, or its gap."""
    return [
        {"way": name, "milliseconds": _milliseconds(one), "peak_bytes": one.peak_bytes, "gap": one.gap}
        for name, one in ((name, found[name]) for name in ways if name in found)
    ]


def best_way(found: Mapping[str, Measured], ways: Sequence[str]) -> str | None:
    """The fastest way of running two plain forwards."""
    medians = {name: found[name].median for name in ways if name in found}
    timed = {name: median for name, median in medians.items() if median is not None}
    return min(timed, key=timed.__getitem__) if timed else None


def _forwards(found: Mapping[str, Measured], ways: Sequence[str], way: str | None) -> Measured:
    """The fastest way's time, and the memory of plain inference, one batch at a time."""
    plain = found.get(ways[0], Measured(gap="stopped"))
    if way is None:
        return plain
    return Measured(found[way].seconds, plain.peak_bytes)


def _row(name: str, one: Measured, seen: Mapping[str, Measured], way: str | None, case: BenchCase) -> dict[str, Any]:
    median = one.median
    inference = seen[CONTENDERS[0]].peak_bytes if CONTENDERS[0] in seen else None
    peak = one.peak_bytes if one.gap is None else None
    return {
        "contender": name,
        "way": way if name == CONTENDERS[0] else None,
        "milliseconds": _milliseconds(one),
        "fastest_milliseconds": None if median is None else round(1e3 * min(one.seconds), 4),
        "slowest_milliseconds": None if median is None else round(1e3 * max(one.seconds), 4),
        "over_forwards": _over(median, seen.get("forwards")),
        "over_reference": _over(median, seen.get("reference")),
        "peak_bytes": peak,
        "over_inference": round(peak / inference, 4) if peak and inference else None,
        "tokens_a_second": None if median is None else round(case.batch * case.tokens / median, 1),
        "gap": one.gap or ("stopped" if median is None else None),
        "note": one.note,
    }


def _over(median: float | None, other: Measured | None) -> float | None:
    if median is None or other is None or other.median is None:
        return None
    return round(median / other.median, 4)


def _milliseconds(one: Measured) -> float | None:
    return None if one.median is None else round(1e3 * one.median, 4)

"""What a verdict holds beside the tuned weights: calibrated zero-shot, and the readout on the untouched model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noback.json_text import has_numbers

Metrics = Sequence[Mapping[str, Any]]


def untouched(metrics: Metrics) -> Mapping[str, Any] | None:
    """The validation set answered before a readout's first fit; None: the run has no readout, or the line is lost."""
    return next((line for line in reversed(metrics) if line.get("kind") == "untouched"), None)


def calibration(metrics: Metrics) -> list[str]:
    """Where a causal model's scores less those after a content-free prompt are better than what was trained."""
    tested, bases = _tested(metrics), [line for line in _of("zero_shot", metrics) if has_numbers(line, "calibrated")]
    if tested is None or not bases or bases[-1]["calibrated"] <= tested:
        return []
    alone = f"a content-free calibration alone gives {bases[-1]['calibrated']:.1%} on the test set"
    return [f"{alone}, more than the best weights' {tested:.1%}"]


def readout(metrics: Metrics) -> list[str]:
    """What the steps added to the readout that was fitted before them."""
    tested, frozen = _tested(metrics), _of("frozen_readout", metrics)
    if tested is None or not frozen or not has_numbers(frozen[-1], "accuracy"):
        return []
    alone = frozen[-1]["accuracy"]
    return [
        f"the readout on the untouched model gives {alone:.1%} on the test set, the best weights {tested:.1%}: "
        f"{100 * (tested - alone):+.1f} points by the steps"
    ]


def _tested(metrics: Metrics) -> float | None:
    """The accuracy of the best weights on the test set."""
    lines = [line for line in _of("test", metrics) if line.get("at") == "best"]
    return float(lines[-1]["accuracy"]) if lines and has_numbers(lines[-1], "accuracy") else None


def _of(kind: str, metrics: Metrics) -> list[Mapping[str, Any]]:
    return [line for line in metrics if line.get("kind") == kind]

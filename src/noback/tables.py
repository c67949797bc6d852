"""The tables that `noback.compare` and `noback.epsilon` return: their entries, for type checkers."""

from __future__ import annotations

from typing import TypedDict


class ComparedRow(TypedDict):
    """One run of a comparison."""

    objective: str
    name: str  # of its folder inside the comparison's
    adapter: str
    tuned: str
    tuned_weights: int | None
    lr: float
    eps: float
    zero_slope_share: float
    mean_abs_slope: float
    min_abs_slope: float
    max_abs_slope: float
    first_loss: float | None
    last_loss: float | None
    before: float | None
    after: float | None
    best: float | None
    examples: int | None
    forwards: int
    seconds: float
    verdict: str


class Comparison(TypedDict):
    """One task under several objectives."""

    folder: str
    kind: str
    task: str
    config: dict[str, object]
    objectives: list[str]
    eps: list[float | None]
    steps: int
    batch: int
    versions: dict[str, str]
    finished: bool
    rows: list[ComparedRow]
    tuned_note: str  # where some rows tune other weights than others; else empty


class EpsRow(TypedDict):
    """Slopes and curvature of one objective at one eps."""

    objective: str
    eps: float
    nonzero_share: float
    mean_abs_slope: float
    min_abs_slope: float
    max_abs_slope: float
    agreement: float | None
    same_sign: float
    curvature: float
    mean_abs_curvature: float


class EpsAdvice(TypedDict):
    """The eps to use for an objective, none where none of those measured serves, and why."""

    objective: str
    eps: float | None
    reason: str


class EpsTable(TypedDict):
    """What eps does to the slopes of a task."""

    folder: str
    kind: str
    task: str
    config: dict[str, object]
    versions: dict[str, str]
    reference: float
    directions: int
    batch: int
    forwards: int
    seconds: float
    rows: list[EpsRow]
    recommendations: list[EpsAdvice]

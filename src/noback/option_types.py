"""The options of a run as keywords, for type checkers: what each may be; a method is an object, a name or a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypedDict

from noback.adapters import AnyAdapter
from noback.directions import AnyNoise
from noback.engines.options import AnyEngine
from noback.estimators import AdaptTies, AnyEstimator
from noback.objectives import AnyObjective
from noback.readouts import AnyReadout
from noback.rules import AnyRule
from noback.usual import Rate

Table = Mapping[str, object]  # `{"kind": "lora", "rank": 4}`


class CommonOptions(TypedDict, total=False):
    """What `RunConfig` and the functions' keywords share."""

    columns: str | None
    template: str | None
    words: str | Mapping[str, str] | Mapping[int, str] | None
    shots: int | None
    demonstrations: int | None
    data_seed: int
    test_limit: int
    steps: int
    batch: int
    seed: int
    dtype: str
    quantise: str | None
    device: str | None
    eval_every: int | None
    metric: str | None
    patience: int | None
    balance: str | None
    estimator: AnyEstimator | str | Table
    rule: AnyRule | str | Table
    noise: AnyNoise | str | Table | None
    directions_per: str
    readout: AnyReadout | str | Table | None
    engine: AnyEngine | str | Table
    adapter: AnyAdapter | str | Table
    objective: AnyObjective | str | Table


class ConfigOptions(CommonOptions, total=False):
    """The keywords of `RunConfig`."""

    model: str
    task: str
    data: str | None
    adapt_ties: AdaptTies | Table | None


class FlagOptions(CommonOptions, total=False):
    """The options that the command line has as flags and `RunConfig` has within its methods; data, model, eps apart."""

    task: str | os.PathLike[str]
    adapt_ties: AdaptTies | Table | bool | None
    directions: int
    power: float
    lr: Rate | None
    schedule: str
    weight_decay: float
    beta: float
    window: int
    clip: float | None
    noise_rank: int
    noise_period: int
    readout_decay: float | None
    readout_examples: int
    readout_refits: int
    matmul_precision: str
    probes_per_pass: int | None
    micro_batch: int | None
    share: str


class TrainOptions(FlagOptions, total=False):
    """The keywords of `noback.train` besides the data and the model, which may be in memory."""

    eps: float | None


class CompareOptions(FlagOptions, total=False):
    """The keywords of `noback.compare` besides eps, of which it takes several."""

    model: str | os.PathLike[str]
    data: str | os.PathLike[str] | None


class MeasureOptions(TrainOptions, total=False):
    """The keywords of `noback.epsilon` and `noback.baseline`."""

    model: str | os.PathLike[str]
    data: str | os.PathLike[str] | None

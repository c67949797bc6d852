"""One table each of what can be plugged in; the laws and the contracts take their rows from here.

A new method is one row. Each row is small: it runs on a toy model, and on a quadratic with the learning rate beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from noback.adapters import AnyAdapter, Full, Head, Lora, Prefix, Sparse
from noback.directions import AnyNoise, KeptColumns, LowRank, Normal, Rademacher, Rank1
from noback.engines import Engine, Local, Reference
from noback.estimators import AnyEstimator, CurvatureWeighted, OneSided, TwoSided
from noback.objectives import Accuracy, AnyObjective, CrossEntropy, Function, LanguageModel, MacroF1, Reward
from noback.readouts import AnyReadout, AutoReadout, ExactReadout
from noback.rules import Adam, AdaMM, AnyRule, Momentum, Normalised, Sgd


class EstimatorRow(NamedTuple):
    estimator: AnyEstimator
    lr: float  # with which it descends a quadratic of 24 weights, losses around 5


ESTIMATORS: dict[str, EstimatorRow] = {
    "two_sided": EstimatorRow(TwoSided(eps=1e-2), lr=0.02),
    "two_sided-3": EstimatorRow(TwoSided(eps=1e-2, directions=3), lr=0.02),
    "one_sided": EstimatorRow(OneSided(eps=1e-2, directions=4), lr=0.02),
    "curvature": EstimatorRow(CurvatureWeighted(eps=1e-2, directions=1), lr=0.02),
}

RULES: dict[str, AnyRule] = {
    "sgd": Sgd(),
    "sgd-decayed-linear": Sgd(weight_decay=0.5, schedule="linear"),
    "sgd-clipped": Sgd(clip=1.0),
    "momentum": Momentum(beta=0.6, window=3),
    "momentum-decayed-linear": Momentum(beta=0.9, window=2, weight_decay=0.5, schedule="linear"),
    "normalised": Normalised(beta=0.5, window=3),
    "adam": Adam(),
    "adam-decayed-linear": Adam(beta1=0.5, weight_decay=0.5, schedule="linear"),
    "adamm": AdaMM(),
    "normalised-decayed-warmup": Normalised(beta=0.9, window=2, weight_decay=0.5, schedule="warmup_cosine"),
}

# Times the estimator's learning rate: where a rule's steps on the quadratic have another size than sgd's.
LR_FACTORS = {"normalised": 2.0, "sgd-clipped": 2.0, "adam": 2.5, "adamm": 2.5}

NOISES: dict[str, AnyNoise] = {
    "normal": Normal(),
    "rademacher": Rademacher(),
    "rank1": Rank1(),
    "low_rank": LowRank(rank=3),
    "kept_columns": KeptColumns(rank=2, period=3),
}

# Whose directions they are, and a noise to go with each.
DIRECTIONS_PER: dict[str, AnyNoise] = {"step": LowRank(rank=2), "example": Rank1(), "group:3": Normal()}

READOUTS: dict[str, AnyReadout] = {
    "exact": ExactReadout(),
    "auto": AutoReadout(),
    "exact-decayed-some": ExactReadout(decay=0.1, examples=6, refits=1),
}

OBJECTIVES: dict[str, AnyObjective] = {
    "cross_entropy": CrossEntropy(),
    "accuracy": Accuracy(),
    "macro_f1": MacroF1(),
    "language_model": LanguageModel(),
    "reward": Reward("tests.contracts.tables:length"),
    "function": Function("tests.contracts.tables:margin"),
}

ADAPTERS: dict[str, AnyAdapter] = {
    "full": Full(),
    "full-biases": Full(tune="biases"),
    "head": Head(),
    "head-alone": Head(alone=True),
    "lora": Lora(rank=2),
    "prefix": Prefix(tokens=2),
    "sparse": Sparse(share=0.5),
}

ENGINES: dict[str, type[Engine]] = {"local": Local, "reference": Reference}


def length(_row, text, _right):
    """A reward: short texts are good."""
    return -float(len(text))


def margin(logits, gold):
    """A function of label logits."""
    return float((logits.max(dim=1).values - logits.gather(1, gold[:, None])[:, 0]).mean())

"""Objectives, which a step lowers, and metrics, which people read."""

from noback.objectives.base import TEXTS, Objective
from noback.objectives.function import Function
from noback.objectives.label_words import Accuracy, CrossEntropy, LanguageModel, MacroF1
from noback.objectives.metrics import (
    LOSS,
    METRICS,
    SELECTING,
    accuracy,
    answer_loss,
    confusion,
    credits_of,
    cross_entropy,
)
from noback.objectives.own import ObjectiveError, refuse_code
from noback.objectives.reward import Reward
from noback.objectives.texts import TEXT_METRICS, exact_match, token_f1

AnyObjective = CrossEntropy | Accuracy | MacroF1 | LanguageModel | Reward | Function

__all__ = [
    "LOSS",
    "METRICS",
    "SELECTING",
    "TEXTS",
    "TEXT_METRICS",
    "Accuracy",
    "AnyObjective",
    "CrossEntropy",
    "Function",
    "LanguageModel",
    "MacroF1",
    "Objective",
    "ObjectiveError",
    "Reward",
    "accuracy",
    "answer_loss",
    "confusion",
    "credits_of",
    "cross_entropy",
    "exact_match",
    "refuse_code",
    "token_f1",
]

"""Objectives, which a step lowers, and metrics, which people read."""

from noback.objectives.function import Function, ObjectiveError
from noback.objectives.label_words import Accuracy, CrossEntropy, MacroF1
from noback.objectives.metrics import METRICS, accuracy, confusion, cross_entropy

AnyObjective = CrossEntropy | Accuracy | MacroF1 | Function

__all__ = [
    "METRICS",
    "Accuracy",
    "AnyObjective",
    "CrossEntropy",
    "Function",
    "MacroF1",
    "ObjectiveError",
    "accuracy",
    "confusion",
    "cross_entropy",
]

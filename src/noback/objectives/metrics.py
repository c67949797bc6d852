"""Metrics: label logits or answers and gold labels become a number that people read."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def cross_entropy(label_logits: Tensor, gold: Tensor) -> float:
    """Mean cross-entropy over the label words, in float64 so that two near losses keep their difference.

    By NumPy: PyTorch would wake all its threads for so little, while a GPU waits for the answer.
    """
    scores = label_logits.double().numpy()
    right = scores[np.arange(len(scores)), gold.numpy()]
    with np.errstate(invalid="ignore"):  # infinite scores give a loss that is no number, which is found elsewhere
        return float((np.logaddexp.reduce(scores, axis=1) - right).mean())


def cross_entropies(label_logits: Tensor, gold: Tensor) -> Tensor:
    """`cross_entropy` at each point [points, examples, labels], by PyTorch, where the logits are."""
    scores = label_logits.double()
    return (scores.logsumexp(dim=2) - _right(scores, gold)).mean(dim=1)


def answer_losses(label_logits: Tensor, gold: Tensor) -> Tensor:
    """`answer_loss` at each point [points, examples, candidates]."""
    return -_right(label_logits.double(), gold).mean(dim=1)


def _right(scores: Tensor, gold: Tensor) -> Tensor:
    return scores.gather(2, gold[:, None].expand(len(scores), -1, 1))[..., 0]


def answer_loss(label_logits: Tensor, gold: Tensor) -> float:
    """Minus the mean log-probability of the right candidates; label logits are log-probabilities here."""
    return -float(label_logits.double().gather(1, gold[:, None]).mean())


def accuracy(predicted: Tensor, gold: Tensor) -> float:
    """The share of right answers."""
    return float((predicted == gold).double().mean())


def f1(predicted: Tensor, gold: Tensor) -> float:
    """The F1 score of the last label against the rest: the positive class of a two-label task."""
    positive = int(gold.max())
    hits = int(((predicted == positive) & (gold == positive)).sum())
    wrong = int((predicted != gold).sum())
    return 2 * hits / (2 * hits + wrong) if hits else 0.0


def mcc(predicted: Tensor, gold: Tensor) -> float:
    """Matthews' correlation of a two-label task."""
    both = int(((predicted == 1) & (gold == 1)).sum())
    neither = int(((predicted == 0) & (gold == 0)).sum())
    false_alarm = int(((predicted == 1) & (gold == 0)).sum())
    missed = int(((predicted == 0) & (gold == 1)).sum())
    scale = (both + false_alarm) * (both + missed) * (neither + false_alarm) * (neither + missed)
    return (both * neither - false_alarm * missed) / math.sqrt(scale) if scale else 0.0


METRICS = {"accuracy": accuracy, "f1": f1, "mcc": mcc}


def confusion(predicted: Tensor, gold: Tensor, labels: int) -> list[list[int]]:
    """How often each gold label (row) was answered by each label (column)."""
    counts: list[list[int]] = (gold * labels + predicted).bincount(minlength=labels**2).view(labels, labels).tolist()
    return counts

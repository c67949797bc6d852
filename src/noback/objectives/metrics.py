"""Metrics: label logits or answers and gold labels become a number that people read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from noback import counts


def cross_entropy(label_logits: Tensor, gold: Tensor) -> float:
    """Mean cross-entropy over the label words."""
    return float(example_losses(label_logits, gold).mean())


def example_losses(label_logits: Tensor, gold: Tensor) -> NDArray[np.float64]:
    """Each example's cross-entropy over the label words, in float64 so that two near losses keep their difference.

    By NumPy: PyTorch would wake all its threads for so little, while a GPU waits for the answer.
    """
    scores = label_logits.double().numpy()
    right = scores[np.arange(len(scores)), gold.numpy()]
    with np.errstate(invalid="ignore"):  # infinite scores give a loss that is no number, which is found elsewhere
        losses: NDArray[np.float64] = np.logaddexp.reduce(scores, axis=1) - right
    return losses


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


def macro_f1(predicted: Tensor, gold: Tensor) -> float:
    """The mean F1 of the labels; one that neither the answers nor the gold labels hold is left out."""
    return counts.macro_f1(_table(predicted, gold))


def balanced_accuracy(predicted: Tensor, gold: Tensor) -> float:
    """The mean share of right answers of the labels that are there: one answer to everything gives 1 / labels."""
    return counts.balanced_accuracy(_table(predicted, gold))


def mcc(predicted: Tensor, gold: Tensor) -> float:
    """Matthews' correlation, of any number of labels: 0 for one answer to everything."""
    return counts.mcc(_table(predicted, gold))


def _table(predicted: Tensor, gold: Tensor) -> list[list[int]]:
    return confusion(predicted, gold, int(max(predicted.max(), gold.max())) + 1)


METRICS = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "balanced_accuracy": balanced_accuracy,
    "mcc": mcc,
}


LOSS = "loss"  # as a metric: minus the cross-entropy, so that higher is better
SELECTING = (*METRICS, LOSS)  # what the best weights can be chosen by


def credits_of(metric: str, predicted: Tensor, gold: Tensor) -> list[float]:
    """What each answer adds to a metric, so that two sets of answers can be compared example by example.

    Their mean is the metric: 1 or 0 of the accuracy, else what the metric loses without the example (jackknife).
    """
    if metric == "accuracy":
        return (predicted == gold).long().tolist()
    judge, count = METRICS[metric], len(gold)
    whole, found = judge(predicted, gold), dict[tuple[int, int], float]()
    pairs = list(zip(predicted.tolist(), gold.tolist(), strict=True))
    for place, pair in enumerate(pairs):
        if pair not in found and count > 1:
            others = [index for index in range(count) if index != place]
            found[pair] = count * whole - (count - 1) * judge(predicted[others], gold[others])
    return [round(found.get(pair, whole), 6) for pair in pairs]


def confusion(predicted: Tensor, gold: Tensor, labels: int) -> list[list[int]]:
    """How often each gold label (row) was answered by each label (column)."""
    counts: list[list[int]] = (gold * labels + predicted).bincount(minlength=labels**2).view(labels, labels).tolist()
    return counts

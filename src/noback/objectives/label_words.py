"""Objectives over label logits: those of a whole batch and its gold labels become one number, lower is better.

`smooth` says whether any change of the weights changes the number. One that is not smooth is piecewise constant: its
slope is exactly zero wherever no answer of the batch flips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from noback.errors import InputError
from noback.objectives.base import Objective
from noback.objectives.metrics import (
    accuracy,
    answer_loss,
    answer_losses,
    cross_entropies,
    cross_entropy,
    example_losses,
    macro_f1,
)


@dataclass(frozen=True, slots=True)
class CrossEntropy(Objective):
    """Mean cross-entropy over the labels: every perturbation gives a signal."""

    kind: ClassVar[str] = "cross_entropy"
    smooth: ClassVar[bool] = True
    on_device: ClassVar[bool] = True
    teaches: ClassVar[bool] = True

    def loss(self, label_logits: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """The loss of a batch: label logits [examples, labels], gold [examples]."""
        return cross_entropy(label_logits, gold)

    def reduced(self, label_logits: Tensor, gold: Tensor) -> Tensor:
        """Each example's own loss, in float64."""
        return torch.from_numpy(example_losses(label_logits, gold))[:, None]

    def loss_of(self, reduced: Tensor, _gold: Tensor, _texts: Sequence[str]) -> float:
        """The mean over the examples."""
        return float(reduced.numpy()[:, 0].mean())

    def losses(self, label_logits: Tensor, gold: Tensor) -> Tensor:
        """The loss at each point [points, examples, labels], float64, where the logits are."""
        return cross_entropies(label_logits, gold)

    def for_answers(self, answer: str, _task: str) -> Any:
        """Of an answer that is written, the cross-entropy of its own tokens."""
        return LanguageModel() if answer == "text" else self


@dataclass(frozen=True, slots=True)
class Accuracy(Objective):
    """1 - accuracy: piecewise constant."""

    kind: ClassVar[str] = "accuracy"
    smooth: ClassVar[bool] = False

    def loss(self, label_logits: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """The share of wrong answers."""
        return 1.0 - accuracy(label_logits.argmax(dim=1), gold)

    def reduced(self, label_logits: Tensor, _gold: Tensor) -> Tensor:
        """The answer."""
        return _answers(label_logits)

    def loss_of(self, reduced: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """The share of wrong answers."""
        return 1.0 - accuracy(reduced[:, 0], gold)


@dataclass(frozen=True, slots=True)
class MacroF1(Objective):
    """1 - the mean F1 of the labels, over the whole batch at once: piecewise constant, and no mean of examples."""

    kind: ClassVar[str] = "macro_f1"
    smooth: ClassVar[bool] = False

    def loss(self, label_logits: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """Labels that neither the batch nor the answers hold are left out of the mean."""
        return 1.0 - macro_f1(label_logits.argmax(dim=1), gold)

    def reduced(self, label_logits: Tensor, _gold: Tensor) -> Tensor:
        """The answer."""
        return _answers(label_logits)

    def loss_of(self, reduced: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """By the answers of the whole batch."""
        return 1.0 - macro_f1(reduced[:, 0].long(), gold)


@dataclass(frozen=True, slots=True)
class LanguageModel(Objective):
    """The loss of a language model on the right answer alone: minus the mean log-probability of its tokens."""

    kind: ClassVar[str] = "language_model"
    smooth: ClassVar[bool] = True
    answer_only: ClassVar[bool] = True
    on_device: ClassVar[bool] = True

    def loss(self, label_logits: Tensor, gold: Tensor, _texts: Sequence[str]) -> float:
        """Each example counts the same, however long its answer is."""
        return answer_loss(label_logits, gold)

    def reduced(self, label_logits: Tensor, gold: Tensor) -> Tensor:
        """The log-probability of the right answer."""
        return label_logits.gather(1, gold[:, None])

    def loss_of(self, reduced: Tensor, _gold: Tensor, _texts: Sequence[str]) -> float:
        """Minus the mean over the examples."""
        return -float(reduced.double().mean())

    def losses(self, label_logits: Tensor, gold: Tensor) -> Tensor:
        """The loss at each point [points, examples, candidates], float64, where the logits are."""
        return answer_losses(label_logits, gold)

    def for_answers(self, answer: str, task: str) -> LanguageModel:
        """Choices and written answers have tokens of their own."""
        if answer == "words":
            raise InputError(
                f"objective 'language_model' needs choices or written answers; task {task!r} has label words: "
                "use cross_entropy"
            )
        return self


def _answers(label_logits: Tensor) -> Tensor:
    """The label that each example is given [examples, 1], as a number that may be marked as none."""
    return label_logits.argmax(dim=1, keepdim=True).float()

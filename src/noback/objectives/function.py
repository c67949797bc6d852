"""Any Python function of a batch's answers as the objective: given in code or as `module:function`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from noback.errors import InputError
from noback.objectives.base import Objective
from noback.objectives.own import imported, number_from, own_name
from noback.options import one_of, option

READS = ("logits", "text")
_ONE = "one number for the whole batch: reduce it, for example with .mean()"


@dataclass(frozen=True, slots=True)
class Function(Objective):
    """A function of (label logits [examples, labels], gold [examples]) that returns one number, lower is better.

    With reads="text" it is given two lists of texts instead: what the model answered and what is right. A replay
    needs the journal alone and never calls it.
    """

    kind: ClassVar[str] = "function"
    costly: ClassVar[bool] = True

    function: str = option("", "the function as module:function; in Python, the function itself")
    reads: str = option("logits", "what it is given: label logits and gold, or texts", choices=READS)
    smooth: bool = option(False, "whether any change of the weights changes it")

    def __post_init__(self) -> None:
        one_of("objective.reads", self.reads, READS)
        object.__setattr__(self, "function", own_name(self.function))

    @classmethod
    def of_text(cls, text: str) -> dict[str, Any] | None:
        """The table of options that `module:function` stands for."""
        return {"kind": cls.kind, "function": text} if ":" in text else None

    def check(self) -> None:
        """Refuse a function that cannot be imported."""
        imported(self.function)

    def for_answers(self, answer: str, task: str) -> Function:
        """A function of texts needs labels that are the same for all rows."""
        if answer == "choices" and self.reads == "text":
            raise InputError(
                f"each row of task {task!r} has choices of its own, so objective.reads 'text' has no texts; use logits"
            )
        return super(Function, self).for_answers(answer, task)

    def loss(self, label_logits: Tensor, gold: Tensor, texts: Sequence[str]) -> float:
        """What the function returns, checked; `texts` holds the text of each label."""
        given: tuple[Any, Any] = _copies(label_logits, gold)  # what it writes into them is its own affair
        if self.reads == "text":
            given = [texts[i] for i in label_logits.argmax(dim=1).tolist()], [texts[i] for i in gold.tolist()]
        return number_from(self.function, given, _ONE)


@torch.inference_mode(mode=False)
def _copies(*tensors: Tensor) -> Any:
    """Ordinary tensors of the same values."""
    return tuple(tensor.detach().clone() for tensor in tensors)

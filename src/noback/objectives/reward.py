"""A reward: any Python function of a text that the model wrote, higher is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from noback.errors import InputError
from noback.objectives.base import TEXTS, Objective
from noback.objectives.own import imported, number_from, own_name
from noback.options import option

_PREFIX = "reward:"


@dataclass(frozen=True, slots=True)
class Reward(Objective):
    """A function of (row, text, right) that returns one number for one text, higher is better.

    `row` holds the columns of the prompt, `text` what the model wrote after it, `right` the right answers (empty where
    the task names no label). The loss of a batch is minus the mean of its texts' numbers. A replay needs the journal
    alone and never calls the function.
    """

    kind: ClassVar[str] = "reward"
    smooth: ClassVar[bool] = False
    judges: ClassVar[str] = TEXTS

    function: str = option("", "the function as module:function; in Python, the function itself")
    hold: bool = option(
        True, "whether a point's weights are formed once for a whole text: faster, and a second copy of what is tuned"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", own_name(self.function))

    @classmethod
    def of_text(cls, text: str) -> dict[str, Any] | None:
        """The table of options that `reward:module:function` stands for."""
        name = text.removeprefix(_PREFIX)
        return {"kind": cls.kind, "function": name} if name != text and ":" in name else None

    def check(self) -> None:
        """Refuse a function that cannot be imported."""
        imported(self.function)

    def for_answers(self, answer: str, task: str) -> Reward:
        """A reward judges what is written."""
        if answer != "text":
            raise InputError(
                f"objective 'reward' judges answers that are written; task {task!r} has answers to choose from: "
                "use a task with neither label words nor choices"
            )
        return self

    def rewards(self, written: Iterable[tuple[Mapping[str, str], str, Sequence[str]]]) -> Tensor:
        """What the function returns for each (row, text, right), in place of label logits: float64 [examples, 1]."""
        found = [
            number_from(self.function, (dict(row), text, tuple(right)), "one number for one text")
            for row, text, right in written
        ]
        return torch.tensor(found, dtype=torch.float64)[:, None]

    def loss(self, rewards: Tensor, _gold: Tensor, _texts: Sequence[str]) -> float:
        """Minus the mean of the rewards [examples, 1]."""
        return -float(rewards.double().mean())

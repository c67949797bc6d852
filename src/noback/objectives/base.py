"""What an objective promises: how it judges a batch, and what it can say of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

from torch import Tensor

from noback.errors import InputError

SCORES, TEXTS = "scores", "texts"


class Objective(Protocol):
    """Turns what the model answers to a batch into one number, lower is better.

    An objective is a frozen dataclass of options that inherits from this class and writes `loss`.
    """

    kind: ClassVar[str]  # its name in TOML and on the command line
    judges: ClassVar[str] = SCORES  # label logits, or the texts that the model writes (then it has `rewards`)
    answer_only: ClassVar[bool] = False  # whether the right answer's score is all it reads
    on_device: ClassVar[bool] = False  # whether it has `losses`, which PyTorch computes where the label logits are
    teaches: ClassVar[bool] = False  # whether it is the label words' cross-entropy, which a readout is fitted to
    costly: ClassVar[bool] = False  # whether `loss` may take long, so that health figures do without it
    function: str = ""  # the user's own function that it calls, as module:function; empty: none
    hold: bool = True  # whether a point's weights may be formed once for a whole text

    @property
    def smooth(self) -> bool:
        """Whether any change of the weights changes the number; one that is not smooth is piecewise constant."""
        ...

    def loss(self, label_logits: Tensor, gold: Tensor, texts: Sequence[str]) -> float:
        """The loss of a batch: label logits [examples, labels], gold [examples]."""
        ...

    def reduced(self, label_logits: Tensor, _gold: Tensor) -> Tensor:
        """What the loss needs of each example [examples, numbers]; ranks exchange no more than that."""
        return label_logits

    def loss_of(self, reduced: Tensor, gold: Tensor, texts: Sequence[str]) -> float:
        """The loss of a batch by what it needs of each example: `loss` of the label logits, to the bit."""
        return self.loss(reduced, gold, texts)

    def check(self) -> None:
        """Refuse, before anything is opened, an objective that cannot be had."""
        return

    def for_answers(self, answer: str, task: str) -> Self:
        """The objective for a task whose answers are `words`, `choices` or `text`; one that does not fit is refused."""
        if answer == "text":
            raise InputError(
                f"task {task!r} has answers that are written, which objective {self.kind!r} cannot judge; "
                "use language_model, or reward:module:function for a function of the text"
            )
        return self

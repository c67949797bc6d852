"""What a rule promises, and how a record of the journal becomes a move of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from noback.errors import InputError
from noback.options import not_negative, one_of, positive
from noback.rules.clipping import clipped
from noback.rules.schedule import SCHEDULES
from noback.usual import AUTO, Rate, usual_text
from noback.values import Adaptive, Estimate, Move, Term

LR_HELP = f"learning rate; auto: found by short trials before step 0; none: {usual_text('lr')}"
Array = Any  # float64 [directions], NumPy's or torch's: a rule uses only the operators that both have


class Rule(Protocol):
    """Turns slopes into how far the weights go along each direction; it never sees the weights.

    Its state is the journal: it is given the slopes of as many earlier steps as it asks for.
    A rule is a frozen dataclass of options that inherits from this class and writes `coefficients`.
    """

    kind: ClassVar[str]  # its name in TOML and on the command line
    keeps_moments: ClassVar[bool] = False  # whether its moves are adaptive: they are replayed from the first on
    runs_ahead: ClassVar[bool] = True  # whether array operators are all it uses: a GPU may run ahead of the journal

    @property
    def lr(self) -> Rate | None:
        """The learning rate; None: the usual one; auto: to be found before the first step."""
        ...

    @property
    def weight_decay(self) -> float:
        """Times the learning rate, the share that weights lose each step."""
        ...

    @property
    def schedule(self) -> str:
        """How the learning rate goes over the run."""
        ...

    @property
    def clip(self) -> float | None:
        """At how many medians a step's slopes are cut before the rule sees them; None: not at all."""
        return None

    @property
    def memory(self) -> int:
        """How many earlier steps' slopes it is given."""
        return 0

    def adaptive(self, _step: int, _lr: float) -> Adaptive | None:
        """How its sums are made steps weight by weight; None: they are added themselves."""
        return None

    def check_weights(self, _count: int) -> None:
        """Refuse more tuned weights than it is for."""
        return

    def coefficients(self, lr: float, slopes: Sequence[Array]) -> list[Array]:
        """How far to go along each direction of each step, newest step first; `lr` is this step's.

        A rule that only looks at the earlier steps leaves them out at the end of the list.
        """
        ...


def coefficients_of(rule: Rule, lr: float, slopes: Sequence[Array]) -> list[Array]:
    """What a rule makes of slopes, newest step first, each step's clipped where the rule is to."""
    return rule.coefficients(lr, [clipped(some, rule.clip) for some in slopes])


def lr_at(rule: Rule, step: int, steps: int) -> float:
    """The learning rate of a step."""
    if not isinstance(rule.lr, float | int):
        raise InputError(f"the rule's lr is {rule.lr!r}; expected a number above zero")
    return rule.lr * SCHEDULES[rule.schedule](step, steps)


def decay_at(rule: Rule, step: int, steps: int) -> float:
    """What the decayed weights are multiplied by at a step."""
    return 1.0 - lr_at(rule, step, steps) * rule.weight_decay


def move_of(rule: Rule, step: int, steps: int, estimates: Sequence[Estimate]) -> Move:
    """The move of a step: a pure function of its estimate and those of earlier steps, newest first."""
    slopes = [np.array(one.slopes, dtype=np.float64) for one in estimates]
    along = coefficients_of(rule, lr_at(rule, step, steps), slopes)
    each = zip(estimates[: len(along)], along, strict=True)
    terms = (Term(*pair) for one, far in each for pair in zip(one.seeds, far.tolist(), strict=True))
    return Move(tuple(terms), decay_at(rule, step, steps), rule.adaptive(step, lr_at(rule, step, steps)))


def check_rule(rule: Rule) -> None:
    """Refuse options that every rule has and that cannot be used."""
    if rule.lr is not None and rule.lr != AUTO:
        positive("lr", rule.lr)
    if rule.clip is not None:
        positive("clip", rule.clip)
    not_negative("weight_decay", rule.weight_decay)
    one_of("schedule", rule.schedule, SCHEDULES)

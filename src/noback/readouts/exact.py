"""The readout by its own gradient: the convex fit of rows and biases to features, without back-propagation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from noback.errors import InputError
from noback.options import option, positive, whole
from noback.readouts.fitting import Fit, Given, fit, fit_by_validation


@dataclass(frozen=True, slots=True)
class ExactReadout:
    """A label's logit is the label word's plus D h + d, h what the decoder is given; D and d are fitted now and then.

    They minimise the mean cross-entropy of training examples plus decay / 2 times the squares of D, and stay as they
    are until the next fit; the trunk's steps see them.
    """

    kind: ClassVar[str] = "exact"
    off: ClassVar[str] = "words"  # what one writes where no readout is wanted
    if_possible: ClassVar[bool] = False  # whether it is left out, not refused, where there can be none

    decay: float | None = option(
        None, "pull of the readout's rows towards zero; none: chosen by cross-validation on the features"
    )
    examples: int = option(4096, "training examples that a fit of the readout sees at most")
    refits: int = option(2, "fits of the readout after the one at step 0, spread over the run's evaluations")

    def __post_init__(self) -> None:
        if self.decay is not None:
            positive("readout.decay", self.decay)
        whole("readout.examples", self.examples)
        if not isinstance(self.refits, int) or isinstance(self.refits, bool) or self.refits < 0:
            raise InputError(f"readout.refits is {self.refits!r}; expected a whole number, zero or above it")

    def settled(self) -> ExactReadout:
        """What is recorded of it, once it is known that there can be one."""
        return ExactReadout(self.decay, self.examples, self.refits)

    def fit(self, given: Given, tell: Callable[[int, int], None] = lambda _done, _of: None) -> Fit:
        """Rows and biases for what was given; `tell` is told how far the choice of the decay has come."""
        return fit_by_validation(given, tell) if self.decay is None else fit(given, self.decay)

    def fit_steps(self, evaluations: Sequence[int]) -> frozenset[int]:
        """At which of a run's evaluations, in order, the readout is fitted: the first, and `refits` of the others."""
        last = len(evaluations) - 1
        return frozenset({0, *(evaluations[-(-last * one // self.refits)] for one in range(1, self.refits + 1))})

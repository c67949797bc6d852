"""In which type a server computes its logits, by its scores: those of 8 or 11 binary digits are few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DIGITS = {"bfloat16": 8, "float16": 11}  # binary digits of a number, the leading one among them
_OCTAVES = range(-2, 7)  # of the largest logit: up to 128
_ROUNDED = 4e-6  # by which a difference of two log-probabilities, which are float32, is off
_MOST = 0.7  # share of the logits that have so few digits; of float32 ones a few in a hundred have, by chance


def precision_of(scores: Sequence[Sequence[float]]) -> str:
    """The type of the logits whose log-probabilities these are, each sequence of one prompt.

    A log-probability is a logit less a constant of its prompt. With the right constant all logits have few digits.
    """
    for name, digits in _DIGITS.items():
        if all(_share(np.array(one), digits) > _MOST for one in scores):
            return name
    return "float32"


def _share(scores: NDArray[np.float64], digits: int) -> float:
    """How many logits have so few digits, with the constant with which most do: the largest logit is tried."""
    fractions = 1 + np.arange(2 ** (digits - 1)) / 2 ** (digits - 1)
    tried = np.concatenate([sign * 2.0**octave * fractions for octave in _OCTAVES for sign in (-1, 1)])
    return max(float(_have(scores - scores.max() + largest, digits).mean()) for largest in tried)


def _have(logits: NDArray[np.float64], digits: int) -> NDArray[np.bool_]:
    """Which numbers have so few binary digits, but for the rounding of the scores."""
    spacing = 2.0 ** (np.frexp(logits)[1] - digits)
    return np.asarray(np.abs(logits / spacing - np.rint(logits / spacing)) * spacing <= _ROUNDED)

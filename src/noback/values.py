"""The values that flow through the house: terms, moves and estimates."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One direction, named by its 64-bit seed, and how far to go along it."""

    seed: int
    coefficient: float


@dataclass(frozen=True, slots=True)
class Adaptive:
    """How the sum of a move's terms is made a step weight by weight: by the size that such sums had there so far."""

    step: int  # its number: what is kept of earlier ones begins anew with 0
    lr: float
    beta1: float  # how much of the mean of the sums is kept from a step to the next
    beta2: float  # the same of the mean of their squares
    tiny: float  # is added to the root of that
    keeps_largest: bool  # whether the largest mean square so far divides; else the present one, both means unbiased


@dataclass(frozen=True, slots=True)
class Move:
    """A displacement of the weights: decay them, then add each term in its order.

    `decay` is the factor that multiplies the decayed weights before any term is added (1.0: none). `adaptive`: the
    sum of the terms is not added itself.
    """

    terms: tuple[Term, ...]
    decay: float = 1.0
    adaptive: Adaptive | None = None

    @property
    def rounding_seed(self) -> int:
        """The seed of the bits that round this move's sum in bfloat16: that of its first term."""
        return self.terms[0].seed if self.terms else 0


MOST_STEPS = 2**32 - 1  # of a run: a journal's record holds its step in 32 bits
MOST_DIRECTIONS = 2**16  # of a step: each is a forward or two, and a number in every record

UNPERTURBED = Move(())  # the point at which the weights stand


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step learned: its loss, the slope along each of its directions, and what else its method keeps."""

    loss: float
    seeds: tuple[int, ...]
    slopes: tuple[float, ...]
    figures: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """How a set was answered."""

    accuracy: float | None  # None: a reward judges the answers
    score: float  # by the run's metric, higher is better; minus the loss where that is the metric; or the mean reward
    loss: float  # cross-entropy, whatever the objective; of a reward, minus its mean
    objective: float | None  # the run's objective over the whole set, lower is better; None: not asked for
    examples: int
    confusion: list[list[int]]  # gold label (row) answered by label (column)


def direction_seeds(run_seed: int, step: int, directions: int) -> tuple[int, ...]:
    """The seeds of a step's directions: a pure function of the run's seed and the step.

    For a family that keeps columns they are parts of these (`directions/seeds.py`, which has those of any family).
    """
    return tuple(
        int.from_bytes(
            hashlib.blake2s(struct.pack("<QQQ", run_seed, step, index), digest_size=8).digest(),
            "little",
        )
        for index in range(directions)
    )


def to_float32(value: float) -> float:
    """The float32 nearest to `value`: the precision in which the journal keeps a number."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")

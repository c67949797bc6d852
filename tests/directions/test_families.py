"""Noise families: chosen by kind, and of any width that the kernels know."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from noback.directions import FAMILIES, KeptColumns, LowRank, Normal, Place, Rademacher, Rank1, philox, philox_numba
from noback.errors import InputError
from noback.values import Move, Term
from noback.weights import Weights

MOVES = [Move((Term(5, 1e-3), Term(2**63 + 9, -2e-3))), Move((Term(7, 0.5),), decay=0.99)]


def family_of(bits, values=None):
    """A family of evenly spaced values."""
    spaced = np.linspace(-1.7, 1.7, 1 << bits, dtype=np.float32)

    @dataclass(frozen=True)
    class Even:
        kind: ClassVar[str] = "even"
        rank: ClassVar[int] = 0
        period: ClassVar[None] = None

    Even.bits, Even.values = bits, spaced if values is None else values
    return Even()


def test_a_family_is_chosen_by_its_kind_or_given():
    ranked = {"rank1": Rank1(), "low_rank": LowRank(), "kept_columns": KeptColumns()}
    assert {"normal": Normal(), "rademacher": Rademacher(), **ranked} == FAMILIES
    tensors = {"w": torch.zeros(4, 5)}
    assert Weights(tensors).family == Weights(tensors, "normal").family == Normal()
    assert Weights(tensors, Rademacher()).family == Weights(tensors, "rademacher").family == Rademacher()
    with pytest.raises(
        InputError,
        match="noise is 'rademaker'; expected one of kept_columns, low_rank, normal, rademacher, rank1; did you mean",
    ):
        Weights(tensors, "rademaker")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_family_of_any_width_has_the_bits_of_the_reference(bits, dtype):
    weight = np.random.default_rng(0).standard_normal((150, 70)).astype(np.float32)
    weight = weight if dtype == "float32" else philox.round_to_nearest(weight)
    place, noise = Place(3, 80, 9, 4), family_of(bits)
    out = np.empty((2, *weight.shape), weight.dtype)
    philox_numba.perturb([(out, weight, place)], noise, MOVES, threads=2)
    assert out.tobytes() == philox.perturbed(weight, place, noise, MOVES).tobytes()
    philox.advance([(slow := weight.copy(), place)], noise, MOVES)
    philox_numba.advance([(fast := weight.copy(), place)], noise, MOVES)
    assert fast.tobytes() == slow.tobytes() != weight.tobytes()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_every_value_of_a_family_is_drawn_about_as_often(bits):
    noise = family_of(bits)
    drawn = philox.perturbed(np.zeros((512, 128), np.float32), Place(1, 128), noise, [Move((Term(1, 1.0),))])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == noise.values.tolist()
    expected = drawn.size / len(values)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (family_of(3), "noise 'even' has 3 bits an element and 8 values; expected 1, 2, 4 or 8 bits"),
        (family_of(16), "has 16 bits"),
        (family_of(2, np.zeros(3, np.float32)), "has 2 bits an element and 3 values"),
    ],
)
def test_a_width_that_the_kernels_do_not_know_is_refused(noise, said):
    with pytest.raises(InputError, match=said):
        Weights({"w": torch.zeros(4, 5)}, noise)

"""Law 1: noise depends only on (seed, tensor, row, column): the twin and numba agree, and any cut equals the whole."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noback.directions import (
    FAMILIES,
    KeptColumns,
    LowRank,
    Normal,
    Place,
    Rademacher,
    Rank1,
    philox,
    philox_numba,
    seeds_of,
)
from noback.values import Move, Term, direction_seeds

MOVES = [
    Move((Term(5, 1e-3), Term(2**63 + 9, -2e-3))),
    Move((Term(7, 0.5),), decay=0.99),
    Move((Term(5, -1e-3),)),
]
SIDES = [Move((Term(5, 1e-3),)), Move((Term(5, -1e-3),)), Move((Term(6, 0.5),)), Move((Term(6, -0.5),))]
DTYPES = ["float32", "bfloat16"]


def perturbed(implementation, weight, place, noise, points, rows=None, threads=1):
    """The weight, or its chosen rows, at each point by either implementation."""
    out = np.empty((len(points), len(weight) if rows is None else len(rows), weight.shape[1]), weight.dtype)
    implementation.perturb([(out, weight, place)], noise, points, rows, threads=threads)
    return out


def weight_of(shape, dtype, seed=0):
    weight = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return weight if dtype == "float32" else philox.round_to_nearest(weight)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # the known answers published with Philox4x32-10
        (0, (0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, (2**64 - 1, 2**32 - 1, 2**32 - 1), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, (0x85A308D3243F6A88, 0x13198A2E, 0x03707344), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(key, counter, words):
    position, tensor, stream = counter
    found = philox.philox(key, np.array([position], dtype=np.uint64), tensor, stream)
    assert " ".join(f"{int(word[0]):08x}" for word in found) == words


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(
    rows=st.integers(1, 150),
    columns=st.integers(1, 300),
    first=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    threads=st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_numba_equals_the_twin_bit_for_bit(family, dtype, rows, columns, first, threads):
    weight = weight_of((rows, columns), dtype)
    place = Place(12345, columns + first[1] + 3, *first)
    for points in (MOVES, SIDES, SIDES[:3], [SIDES[0], SIDES[3]], SIDES[1:3]):
        slow = philox.perturbed(weight, place, family, points)
        fast = perturbed(philox_numba, weight, place, family, points, threads=threads)
        assert slow.tobytes() == fast.tobytes()
    parts = [
        (np.empty((4, *weight.shape), weight.dtype), weight, Place(tensor, place.columns, *first))
        for tensor in range(3)
    ]
    philox_numba.perturb(parts, family, SIDES, threads=threads)
    for out, _, there in parts:
        assert out.tobytes() == philox.perturbed(weight, there, family, SIDES).tobytes()
    philox.advance([(twin := weight.copy(), place)], family, MOVES)
    philox_numba.advance([(ours := weight.copy(), place)], family, MOVES, threads=threads)
    assert twin.tobytes() == ours.tobytes()


@pytest.mark.parametrize("implementation", [philox, philox_numba], ids=["twin", "numba"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(cut_row=st.integers(1, 69), cut_column=st.integers(1, 89))
@settings(max_examples=10, deadline=None)
def test_any_cut_equals_the_whole(implementation, family, dtype, cut_row, cut_column):
    whole = weight_of((70, 90), dtype)
    start = whole.copy()
    implementation.advance([(whole, Place(9, 90))], family, MOVES)
    for rows in (slice(0, cut_row), slice(cut_row, 70)):
        for columns in (slice(0, cut_column), slice(cut_column, 90)):
            part = start[rows, columns].copy()
            implementation.advance([(part, Place(9, 90, rows.start, columns.start))], family, MOVES)
            assert part.tobytes() == whole[rows, columns].tobytes()


@pytest.mark.parametrize("implementation", [philox, philox_numba], ids=["twin", "numba"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_chosen_rows_equal_those_rows_of_the_whole(implementation, family):
    weight = weight_of((300, 20), "float32")
    rows = np.array([0, 3, 15, 16, 17, 130, 299])
    whole = perturbed(implementation, weight, Place(9, 20), family, MOVES)
    chosen = perturbed(implementation, weight, Place(9, 20), family, MOVES, rows)
    assert chosen.tobytes() == whole[:, rows].tobytes()


def test_the_normal_table_holds_the_midpoint_quantiles_at_unit_variance():
    quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / 256) for index in range(256)])
    quantiles /= np.sqrt((quantiles**2).mean())
    np.testing.assert_allclose(Normal().values, quantiles, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_directions_have_zero_mean_unit_variance_and_no_common_part(family):
    zero = np.zeros((512, 256), dtype=np.float32)
    points = [Move((Term(seed, 1.0),)) for seed in (1, 2**32 + 2)]  # unlike in both halves
    one, other = perturbed(philox_numba, zero, Place(1, 256), family, points)
    elsewhere = perturbed(philox_numba, zero, Place(2, 256), family, points[:1])[0]
    error = 5 / np.sqrt(zero.size)
    assert abs(one.mean()) < error
    assert abs(one.var() - 1) < 2 * error
    assert abs((one * other).mean()) < error  # another seed
    assert abs((one * elsewhere).mean()) < error  # another tensor
    rows = 5 / np.sqrt(len(zero)) if family.rank else error  # there a row's elements have the row's sign in common
    assert abs((one[1:] * one[:-1]).mean()) < rows  # the row below


@pytest.mark.parametrize("rank", [1, 4])
def test_a_low_rank_direction_of_a_matrix_is_of_that_rank_and_its_products_are_of_one(rank):
    zero = np.zeros((40, 30), dtype=np.float32)
    found = perturbed(philox_numba, zero, Place(1, 30), LowRank(rank), [Move((Term(1, 1.0),))])[0]
    assert np.linalg.matrix_rank(found) == rank
    rows, columns = (
        philox.signs(1, Place(1, 30), np.arange(count), rank, stream)
        for count, stream in ((40, philox.ROW_STREAM), (30, philox.COLUMN_STREAM))
    )
    assert set(np.unique(rows)) == set(np.unique(columns)) == {-1.0, 1.0}
    np.testing.assert_allclose(found, rows @ columns.T / np.sqrt(rank), atol=1e-6)
    if rank == 1:
        assert (
            found.tobytes() == perturbed(philox_numba, zero, Place(1, 30), Rank1(), [Move((Term(1, 1.0),))]).tobytes()
        )


def test_columns_stay_for_a_period_and_all_else_is_new_each_step():
    noise, lines, place = KeptColumns(rank=2, period=3), np.arange(300), Place(7, 300)
    seeds = [seed for step in range(9) for seed in seeds_of(noise, 5, step, 2)]
    assert len(set(seeds)) == 18
    for implementation in (philox, philox_numba):
        rows, columns = implementation.factors(noise, place, seeds, lines, 300)
        vectors = perturbed(implementation, np.zeros((300, 1), np.float32), Place(7, 1), noise, along(seeds))
        for made in (rows, vectors):
            assert len({one.tobytes() for one in made}) == 18
        for first in range(0, 18, 6):  # three steps of two directions: each direction has its own columns
            assert len({one.tobytes() for one in columns[first : first + 6 : 2]}) == 1
            assert len({one.tobytes() for one in columns[first + 1 : first + 6 : 2]}) == 1
        assert len({one.tobytes() for one in columns}) == 6


def test_a_period_of_one_step_is_low_rank_noise_of_other_columns_each_step():
    assert all(seeds_of(KeptColumns(period=1), 5, step, 3) == direction_seeds(5, step, 3) for step in range(4))
    assert seeds_of(KeptColumns(period=50), 5, 0, 3) == seeds_of(LowRank(), 5, 0, 3) == direction_seeds(5, 0, 3)


def along(seeds):
    """A point one unit along each direction."""
    return [Move((Term(seed, 1.0),)) for seed in seeds]


@pytest.mark.parametrize("noise", [LowRank(2), KeptColumns(2)], ids=lambda one: one.kind)
@pytest.mark.parametrize("terms", [1, 7, 8, 64, 150])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_move_along_many_low_rank_directions_has_the_bits_of_the_twin(dtype, terms, noise):
    weight, place = weight_of((300, 270), dtype), Place(7, 280, 5, 3)
    moves = [Move(tuple(Term(index * 2**31, 1e-3 * index - 0.02) for index in range(terms)), 0.9)] * 2
    philox.advance([(slow := weight.copy(), place)], noise, moves)
    philox_numba.advance([(fast := weight.copy(), place)], noise, moves, threads=2)
    assert slow.tobytes() == fast.tobytes() != weight.tobytes()


@pytest.mark.parametrize("noise", [Rank1(), LowRank(3), KeptColumns(3)], ids=lambda one: one.kind)
def test_the_signs_that_are_compiled_are_those_of_the_twin(noise):
    place, rows = Place(7, 280, 5, 130), np.array([5, 6, 127, 128, 400])
    slow, fast = (one.factors(noise, place, [3, 2**32 + 3, 2**63 + 9], rows, 150) for one in (philox, philox_numba))
    for one, other in zip(slow, fast, strict=True):
        assert one.tobytes() == other.tobytes()
    assert [one.shape for one in fast] == [(3, noise.rank, 5), (3, noise.rank, 150)]


def test_stochastic_rounding_is_right_on_average():
    """An update of a hundredth of a bfloat16 step moves a hundredth of the weights, so nothing is lost."""
    weight = philox.round_to_nearest(np.ones((512, 512), dtype=np.float32))
    family = Rademacher()
    step = 2.0**-7  # between 1 and the next bfloat16
    philox_numba.advance([(weight, Place(3, 512))], family, [Move((Term(1, 0.01 * step),))])
    values = (weight.astype(np.uint32) << 16).view(np.float32)
    signs = philox.perturbed(np.zeros((512, 512), np.float32), Place(3, 512), family, [Move((Term(1, 1.0),))])[0]
    assert ((values > 1) & (signs < 0)).sum() == 0
    assert abs((values[signs > 0] > 1).mean() - 0.01) < 0.002

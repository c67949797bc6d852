"""What of some points a GPU's kernels and captured forwards are made for."""

import numpy as np
import pytest

from noback.directions import LowRank, Normal, Rademacher, Rank1, philox
from noback.directions.packing import order_of, pack
from noback.values import Move, Term


def points(*terms):
    """Points of one term each."""
    return [Move((Term(seed, coefficient),)) for seed, coefficient in terms]


@pytest.mark.parametrize(
    ("moves", "shared", "mirrored"),
    [
        (points((1, 1e-3), (1, -1e-3)), 2, True),
        (points((1, 1e-3), (1, -1e-3), (2, 0.5), (2, -0.5)), 2, True),
        (points((1, 1e-3), (1, 2e-3)), 2, False),
        (points((1, 0.0), (1, -0.0)), 2, False),  # not the same bits: 0 + 0 and 0 - 0
        (points((1, 1e-3), (2, -1e-3)), 1, False),
        (points((1, 1e-3), (1, 2e-3), (1, 3e-3)), 3, False),
        ([*points((1, 1e-3)), Move(())], 0, False),
        ([Move((Term(1, 1.0), Term(2, 1.0)))], 0, False),
    ],
)
def test_points_that_share_their_noise_are_seen(moves, shared, mirrored):
    assert order_of(moves) == (shared, mirrored, *(len(move.terms) for move in moves))


@pytest.mark.parametrize("noise", [Normal(), Rademacher()], ids=["normal", "rademacher"])
def test_packed_moves_hold_tables_seeds_beginnings_rounding_seeds_and_decays(noise):
    moves = [Move((Term(2**63 + 5, 0.5), Term(7, -2.0)), 0.9), Move(()), Move((Term(9, 1e-3),))]
    words, size = pack(noise, moves), 1 << noise.bits
    tables, rest = words[: 3 * size].view(np.float32), words[3 * size :]
    expected = [philox.fold(noise, coefficient) for coefficient in (0.5, -2.0, 1e-3)]
    assert tables.tobytes() == np.concatenate(expected).tobytes()
    assert rest[:6].view(np.uint64).tolist() == [2**63 + 5, 7, 9]
    assert rest[6:10].tolist() == [0, 2, 2, 3]
    assert rest[10:16].view(np.uint64).tolist() == [2**63 + 5, 0, 9]
    assert rest[16:].view(np.float32).tolist() == [np.float32(0.9), 1.0, 1.0]


@pytest.mark.parametrize(("noise", "each"), [(Rank1(), 1), (LowRank(3), 3)], ids=["rank1", "low_rank"])
def test_packed_moves_of_low_rank_end_with_how_far_each_product_goes(noise, each):
    moves = [Move((Term(5, 0.5), Term(7, -2.0)), 0.9), Move(()), Move((Term(9, 1e-3),))]
    words, plain = pack(noise, moves), pack(Rademacher(), moves)
    assert words[: len(plain)].tolist() == plain.tolist()
    sizes = [philox.part_size(noise, coefficient) for coefficient in (0.5, -2.0, 1e-3)]
    assert words[len(plain) :].view(np.float32).tolist() == [size for size in sizes for _ in range(each)]

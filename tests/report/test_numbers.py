"""The sums of a report, against known values."""

import pytest

from noback.counts import mcnemar, wilson
from noback.reporting.numbers import binned, binned_sizes, kept_places, moving_average


@pytest.mark.parametrize(
    ("right", "examples", "low", "high"),
    # 81 of 263 is the example of Newcombe (1998); of none or all, the far end is z^2 / (n + z^2) away.
    [(81, 263, 0.2553, 0.3662), (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0)],
)
def test_wilsons_interval_is_the_published_one(right, examples, low, high):
    interval = wilson(right / examples, examples)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


def test_a_moving_average_looks_back_over_its_window():
    assert moving_average([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]


def test_a_long_curve_keeps_its_spikes_and_its_ends():
    values = [0.0] * 100_000
    values[77_777], values[33_333] = 9.0, -9.0
    kept = kept_places(values)
    assert {0, 33_333, 77_777, 99_999} <= set(kept)
    assert len(kept) <= 2100


def test_a_short_curve_is_kept_whole():
    assert kept_places([1.0, 2.0, 3.0]) == [0, 1, 2]


def test_a_histogram_counts_each_slope_once_and_zeros_in_the_middle():
    bins = binned([-1.0, 0.0, 0.0, 0.5, 1.0])
    assert sum(bins.counts) == 5
    assert bins.counts[20] == 2
    assert bins.centers[20] == 0.0
    assert bins.counts[0] == bins.counts[-1] == 1


def test_a_histogram_of_nothing_but_zeros_is_one_bar():
    assert binned([0.0, 0.0]).counts[20] == 2


def test_sizes_are_binned_by_their_ratio_without_the_zeros():
    sizes, counts = binned_sizes([0.0, 1.0, -1.0, 100.0])
    assert dict(zip(sizes, counts, strict=True))[1.0] == 2
    assert sum(counts) == 3
    assert binned_sizes([0.0]) == ([], [])


@pytest.mark.parametrize(
    ("to_right", "to_wrong", "chance"), [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (8, 2, 112 / 1024)]
)
def test_mcnemars_test_is_the_exact_one(to_right, to_wrong, chance):
    assert mcnemar(to_right, to_wrong) == pytest.approx(chance)


def test_mcnemars_test_counts_ten_thousand_changes():
    assert 0 < mcnemar(5200, 4800) < 1e-3

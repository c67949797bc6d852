"""Points 5 and 10: whatever is done to a journal, it is an error, a true prefix that says so, or the whole run."""

import pytest

from tests.hostile.journals import fuzz_journals, judge, make_truths


def test_a_thousand_harmed_journals_give_no_wrong_weights_and_no_other_best(tmp_path):
    outcomes = fuzz_journals(tmp_path, seed=1, count=1500)
    assert sum(outcomes.values()) == 1500
    assert outcomes["error"] > 500
    assert outcomes["prefix"] > 100


def test_the_judge_of_harmed_journals_sees_wrong_weights(tmp_path):
    """It would be blind if it passed another run's journal."""
    import random

    one, _, other = make_truths(tmp_path, random.Random(2))[:3]
    assert judge(one.data, one, tmp_path / "harmed") == "whole"
    with pytest.raises(AssertionError):
        judge(other.data, one, tmp_path / "harmed")


def test_two_hundred_harmed_folders_of_snapshots_give_no_other_weights(tmp_path):
    from tests.hostile.snapshots import fuzz_snapshots

    outcomes = fuzz_snapshots(tmp_path, seed=1, count=200)
    assert outcomes["the newest is used"] > 10
    assert outcomes["an older one is used"] > 10

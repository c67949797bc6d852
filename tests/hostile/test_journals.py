"""Points 5 and 10: whatever is done to a journal, it is an error, a true prefix that says so, or the whole run."""

import random

import pytest

from tests.hostile.journals import flipped, fuzz_journals, judge, make_truths


def test_a_thousand_harmed_journals_give_no_wrong_weights_and_no_other_best(tmp_path):
    outcomes = fuzz_journals(tmp_path, seed=1, count=1500)
    assert sum(outcomes.values()) == 1500
    assert outcomes["error"] > 500
    assert outcomes["prefix"] > 100


def test_the_judge_of_harmed_journals_sees_wrong_weights(tmp_path):
    """It would be blind if it passed another run's journal."""
    one, _, other = make_truths(tmp_path, random.Random(2))[:3]
    assert judge(one.data, one, tmp_path / "harmed") == "whole"
    with pytest.raises(AssertionError):
        judge(other.data, one, tmp_path / "harmed")


def test_no_evaluation_becomes_the_best_or_ceases_to_be_by_its_kind(tmp_path):
    """The kind alone says which evaluation was chosen: 2 and 5 are written in each other's place, one record a time."""
    outcomes = []
    for truth in make_truths(tmp_path, random.Random(3)):
        for at, record in enumerate(truth.packed):
            if flipped(record) != record:
                records = [*truth.packed[:at], flipped(record), *truth.packed[at + 1 :]]
                outcomes.append(judge(truth.data[: truth.begin] + b"".join(records), truth, tmp_path / "harmed"))
    assert outcomes.count("error") > 20
    assert outcomes.count("prefix") == 2  # the last record of a run that has not ended reads as torn
    assert "whole" not in outcomes


def test_two_hundred_harmed_folders_of_snapshots_give_no_other_weights(tmp_path):
    from tests.hostile.snapshots import fuzz_snapshots

    outcomes = fuzz_snapshots(tmp_path, seed=1, count=200)
    assert outcomes["the newest is used"] > 10
    assert outcomes["an older one is used"] > 10

"""Which examples train, validate and test: the k-shot protocol, and the rules where a split is missing."""

from collections import Counter

import pytest

from noback.errors import InputError
from noback.tasks.data import Example
from noback.tasks.sampling import balanced, check_labels, draw, draw_test, shuffled

K = 4
SETS = ["train", "validation", "test"]


def examples(name, *counts):
    """So many examples of each label, their labels mixed, each with a text of its own."""
    rounds = [[gold for gold, count in enumerate(counts) if turn < count] for turn in range(max(counts))]
    golds = [gold for one in rounds for gold in one]
    return [Example((f"{name} {number}",), gold) for number, gold in enumerate(golds)]


@pytest.fixture
def protocol():
    """The paper's layout: train and dev, no test."""
    return {"train": examples("train", 30, 30), "validation": examples("dev", 20, 20)}


@pytest.fixture
def whole():
    return {name: examples(name, 20, 20) for name in SETS}


@pytest.fixture
def one_file():
    return {"train": examples("train", 30, 30)}


def drawn(found, spec, shots=K, seed=13, limit=1000):
    return draw(found, spec, shots, seed, limit).splits


def notes(found, spec, shots=K, limit=1000):
    return draw(found, spec, shots, 13, limit).notes


def texts(some):
    return {example.sentences for example in some}


def labels(some):
    return Counter(example.gold for example in some)


# k-shot


@pytest.mark.parametrize("name", ["train", "validation"])
def test_k_shots_are_k_examples_of_each_label(name, protocol, reviews_spec):
    assert labels(drawn(protocol, reviews_spec)[name]) == {0: K, 1: K}


def test_the_next_k_are_apart_from_the_first_k(protocol, reviews_spec):
    splits = drawn(protocol, reviews_spec)
    assert not texts(splits["train"]) & texts(splits["validation"])


@pytest.mark.parametrize("name", ["train", "validation"])
def test_shots_are_drawn_from_train(name, protocol, reviews_spec):
    assert texts(drawn(protocol, reviews_spec)[name]) <= texts(protocol["train"])


@pytest.mark.parametrize("layout", ["protocol", "whole", "one_file"])
@pytest.mark.parametrize("shots", [None, K])
def test_the_same_seed_draws_the_same_sets(layout, shots, request, reviews_spec):
    found = request.getfixturevalue(layout)
    assert drawn(found, reviews_spec, shots) == drawn(found, reviews_spec, shots)


@pytest.mark.parametrize("layout", ["protocol", "whole", "one_file"])
def test_another_seed_draws_other_shots(layout, request, reviews_spec):
    found = request.getfixturevalue(layout)
    one, other = (drawn(found, reviews_spec, seed=seed)["train"] for seed in (13, 21))
    assert texts(one) != texts(other)


@pytest.mark.parametrize("limit", [10, 1000])
@pytest.mark.parametrize("layout", ["protocol", "whole", "one_file"])
def test_the_test_set_is_the_same_whatever_the_seed(layout, limit, request, reviews_spec):
    found = request.getfixturevalue(layout)
    one, other = (drawn(found, reviews_spec, seed=seed, limit=limit)["test"] for seed in (13, 21))
    assert one == other


def test_drawing_leaves_the_data_as_it_was(protocol, reviews_spec):
    before = {name: list(split) for name, split in protocol.items()}
    drawn(protocol, reviews_spec)
    assert protocol == before


def test_too_few_examples_for_k_name_the_label(protocol, reviews_spec):
    protocol["train"] = examples("train", 30, 3)
    with pytest.raises(InputError, match="label '1' has 3 examples in train; train needs number 1 to 4 of them"):
        drawn(protocol, reviews_spec)


def test_too_few_examples_for_the_next_k_say_so(protocol, reviews_spec):
    protocol["train"] = examples("train", 30, 7)
    with pytest.raises(InputError, match="validation needs number 5 to 8 of them: use fewer shots"):
        drawn(protocol, reviews_spec)


# Which split is what


def test_without_a_test_split_the_dev_split_is_the_test_set(protocol, reviews_spec):
    assert drawn(protocol, reviews_spec)["test"] == protocol["validation"]


def test_the_no_test_rule_is_said(protocol, reviews_spec):
    assert "there is no test split: by the protocol the dev split is the test set" in notes(protocol, reviews_spec)


@pytest.mark.parametrize("shots", [None, K])
def test_without_a_test_split_validation_comes_from_train(shots, protocol, reviews_spec):
    assert texts(drawn(protocol, reviews_spec, shots)["validation"]) <= texts(protocol["train"])


@pytest.mark.parametrize("shots", [None, K])
def test_with_all_three_splits_each_set_comes_from_its_own(shots, whole, reviews_spec):
    splits = drawn(whole, reviews_spec, shots)
    assert all(texts(splits[name]) <= texts(whole[name]) for name in SETS)


def test_without_shots_all_of_train_trains(whole, reviews_spec):
    assert texts(drawn(whole, reviews_spec, shots=None)["train"]) == texts(whole["train"])


@pytest.mark.parametrize("shots", [None, K])
@pytest.mark.parametrize("layout", ["protocol", "whole", "one_file"])
def test_no_example_is_in_two_sets(layout, shots, request, reviews_spec):
    splits = drawn(request.getfixturevalue(layout), reviews_spec, shots)
    assert len(set().union(*map(texts, splits.values()))) == sum(map(len, splits.values()))


def test_a_third_of_a_single_file_is_the_test_set(one_file, reviews_spec):
    assert len(drawn(one_file, reviews_spec)["test"]) == 20


def test_the_test_set_of_a_single_file_leaves_half_of_a_rare_label_to_training(reviews_spec):
    pool = [Example((f"text {number}",), int(number < 12)) for number in range(120)]
    splits = drawn({"whole": pool}, reviews_spec, shots=3)
    assert Counter(example.gold for example in splits["test"]) == {0: 34, 1: 6}
    assert Counter(example.gold for example in splits["train"]) == {0: 3, 1: 3}


def test_the_test_set_of_a_single_file_is_balanced_by_label(reviews_spec):
    found = {"train": examples("train", 40, 20)}
    assert labels(drawn(found, reviews_spec)["test"]) == {0: 10, 1: 10}


def test_the_one_file_rule_is_said(one_file, reviews_spec):
    expected = "there is one file only: 20 examples of it, by seed 42, are the test set"
    assert expected in notes(one_file, reviews_spec)


def test_without_shots_a_single_file_is_shared_out_whole(one_file, reviews_spec):
    assert sum(map(len, drawn(one_file, reviews_spec, shots=None).values())) == 60


def test_data_without_train_is_refused(reviews_spec):
    with pytest.raises(InputError, match="the data has no train split"):
        drawn({"test": examples("test", 5, 5), "validation": examples("dev", 5, 5)}, reviews_spec)


# Cut sets


def test_a_test_set_within_the_limit_is_whole(whole):
    assert draw_test(whole, 40, [])[0] == whole["test"]


def test_a_cut_test_set_is_balanced_by_label(reviews_spec, protocol):
    protocol["validation"] = examples("dev", 50, 10)
    assert labels(drawn(protocol, reviews_spec, limit=12)["test"]) == {0: 6, 1: 6}


def test_a_cut_test_set_is_said(protocol, reviews_spec):
    expected = "test: 12 of 40 examples of validation, balanced by label, drawn with seed 42"
    assert expected in notes(protocol, reviews_spec, limit=12)


def test_a_validation_split_is_cut_to_k_of_each_label(whole, reviews_spec):
    assert labels(drawn(whole, reviews_spec)["validation"]) == {0: K, 1: K}


def test_held_out_validation_is_balanced_by_label(protocol, reviews_spec):
    protocol["train"] = examples("train", 80, 20)
    assert labels(drawn(protocol, reviews_spec, shots=None)["validation"]) == {0: 5, 1: 5}


@pytest.mark.parametrize("counts", [(9, 9, 9), (20, 3, 20), (1, 30, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_a_balanced_cut_takes_the_labels_in_turn(counts, size):
    taken = labels(balanced(examples("some", *counts), size))
    most = max(taken.values())
    assert taken.total() == size
    assert all(taken[gold] >= min(count, most - 1) for gold, count in enumerate(counts))


def test_a_balanced_cut_keeps_the_order():
    some = examples("some", 9, 9)
    cut = balanced(some, 5)
    assert cut == [example for example in some if example in cut]


def test_a_shuffle_keeps_every_example():
    some = examples("some", 9, 9)
    assert sorted(shuffled(some, 3), key=some.index) == some


# One label only


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_one_label_is_refused_by_name(name, whole, reviews_spec):
    whole[name] = [example for example in whole[name] if example.gold == 1]
    with pytest.raises(InputError, match=f"the {name} set holds only the label '1'"):
        drawn(whole, reviews_spec, shots=None)


def test_a_set_of_one_label_comes_with_what_to_check(reviews_spec):
    with pytest.raises(InputError, match="check the file's order and its label column"):
        check_labels("test", examples("test", 5), reviews_spec)


def test_a_single_file_of_one_label_is_refused_for_its_label(reviews_spec):
    with pytest.raises(InputError, match="only the label '0'"):
        drawn({"train": examples("train", 4)}, reviews_spec, shots=None)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_a_small_train_split_is_shared_between_train_and_validation(size, reviews_spec):
    found = {"train": examples("train", size, size), "test": examples("test", 9, 9)}
    assert labels(drawn(found, reviews_spec, shots=None)["train"]).keys() == {0, 1}

"""Examples that stand in two sets are counted and said, exactly and nearly the same."""

import time

import pytest

from noback.tasks.data import Example
from noback.tasks.demonstrations import with_demonstrations
from noback.tasks.overlap import Overlaps, Shared, fingerprint, overlaps
from noback.tasks.sampling import draw
from noback.tasks.spec import load_spec
from noback.tasks.task import draw_examples


def some(name, count, gold=0):
    return [Example((f"{name} example number {number}",), gold) for number in range(count)]


# Fingerprints


@pytest.mark.parametrize(
    "near",
    ["A warm, funny film!", "a  warm\tfunny\u00a0film", "A WARM FUNNY FILM", "«a warm — funny film»", "a warm ﬁlm"],
    ids=["punctuation", "space", "case", "other quotes", "a ligature"],
)
def test_case_space_and_punctuation_do_not_change_a_fingerprint(near):
    plain = "a warm film" if "ﬁ" in near else "a warm funny film"
    assert fingerprint([near]) == fingerprint([plain])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a warm film"], ["a warm plot"]),
        (["a", "b c"], ["a b", "c"]),
        (["ab"], ["a b"]),
        (["?!"], ["..."]),
        (["great 😀"], ["great 😡"]),
        (["की"], ["का"]),
    ],
    ids=["a word", "another cut", "a space less", "punctuation alone", "a symbol", "a vowel sign"],
)
def test_texts_that_differ_in_more_have_other_fingerprints(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_has_eight_bytes_that_stay_the_same():
    """A journal may hold fingerprints, so they must be the same in every version."""
    assert fingerprint(["A warm film.", "It was great!"]).hex() == "76b7ace0b4b52d39"


# Counts


def test_test_examples_that_are_in_train_are_counted_exactly_and_nearly():
    train = some("train", 40)
    near = [Example((one.sentences[0].upper() + "!",), one.gold) for one in train[7:10]]
    found = overlaps({"train": train, "validation": [], "test": [*train[:7], *near, *some("test", 90)]})
    assert found.shared == (Shared("test", "train", 100, exact=7, near=3),)


def test_the_note_says_how_many_what_is_spoilt_and_what_to_do():
    assert Overlaps((Shared("test", "train", 100, exact=70, near=3),)).notes == (
        "73 of 100 test examples are in train too (70 exactly, 3 but for case, space or punctuation): "
        "the test score is flattered; remove them from one of the two",
    )


@pytest.mark.parametrize(("of", "within"), [("validation", "train"), ("test", "validation"), ("test", "train")])
def test_each_pair_of_sets_is_looked_at(of, within):
    splits = {name: some(name, 5) for name in ("train", "validation", "test")}
    splits[of] = [*splits[of], splits[within][0]]
    assert overlaps(splits).shared == (Shared(of, within, 6, exact=1, near=0),)


def test_all_sentences_of_an_example_count_together():
    train, test = [Example(("a premise", "one"), 0)], [Example(("a premise", "another"), 0)]
    assert not overlaps({"train": train, "test": test}).notes


def test_texts_with_two_labels_are_counted_once_each():
    train = [Example(("it was good",), 1), Example(("It was good.",), 0), Example(("It was good!",), 0)]
    found = overlaps({"train": train, "test": [Example(("it was bad",), 0)]})
    assert found.two_labels == 1
    assert "texts with more than one label: 1" in found.notes[0]


def test_other_choices_and_other_written_answers_are_no_other_label():
    rows = [Example(("which?",), gold, ("a", "b"), (gold,)) for gold in (0, 1)]
    rows += [Example(("what?",), 0, accepted=(text,)) for text in ("this", "that")]
    assert overlaps({"train": rows}).two_labels == 0


def test_sets_that_share_nothing_give_no_note():
    assert overlaps({name: some(name, 5) for name in ("train", "validation", "test")}).notes == ()


def test_a_hundred_thousand_examples_take_a_few_seconds_at_most():
    examples = some("a sentence of a middling length, such as people write in a review, and", 100_000)
    began = time.process_time()
    overlaps({"train": examples[:80_000], "test": examples[80_000:]})
    assert time.process_time() - began < 5


# Where it is said


def test_what_a_draw_has_in_common_is_among_its_notes(reviews_spec):
    rows = [*some("one", 20), *some("other", 20, gold=1)]
    drawn = draw({"train": rows, "validation": rows, "test": rows}, reviews_spec, None, 13, 1000)
    assert [one.note for one in drawn.overlaps.shared] == [note for note in drawn.notes if "examples are in" in note]
    assert len(drawn.overlaps.shared) == 3


def test_a_file_that_repeats_its_rows_overlaps_itself(reviews_spec):
    rows = [*some("one", 20), *some("other", 20, gold=1)]
    drawn = draw({"whole": [Example(one.sentences, one.gold) for one in rows * 2]}, reviews_spec, None, 13, 1000)
    assert any("test examples are in train too" in note for note in drawn.notes)


def test_demonstrations_leave_the_counts_as_they_are():
    spec = load_spec("reviews-causal")
    rows = [*some("one", 20), *some("other", 20, gold=1)]
    drawn = draw({"train": rows, "test": rows}, spec, None, 13, 1000)
    assert with_demonstrations(drawn, spec, 2).overlaps == drawn.overlaps


@pytest.mark.parametrize("task", ["reviews", "reviews-causal"])
def test_the_embedded_data_has_nothing_in_two_sets_and_no_text_with_two_labels(task):
    assert draw_examples(load_spec(task), None, None, 13, 1000).overlaps == Overlaps()

"""What is shown of a value or a text that nobody vouches for."""

import pytest

from noback.errors import printable, shown


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("over\rwritten\b", r"over\rwritten\x08"),
        ("\u202eright to left\u2066", r"\u202eright to left\u2066"),
        ("\u2028\ufeff\u200b", r"\u2028\ufeff\u200b"),
        ("half \ud83d", r"half \ud83d"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_would_steer_a_terminal_is_shown_by_its_escape(text, safe):
    assert printable(text) == safe


@pytest.mark.parametrize(
    "text", ["two\nlines", "a\ttab", "café 😀👩\u200d🔬", "\u0645\u200c\u062e", "no\u00a0break", "漢\u3000"]
)
def test_what_people_write_stays_as_it_is(text):
    assert printable(text) == text


def test_a_value_is_shown_as_python_writes_it():
    assert [shown(value) for value in ("a", 1, 1.5, [1], 2**64, True)] == ["'a'", "1", "1.5", "[1]", str(2**64), "True"]


def test_a_long_value_is_cut():
    assert shown("a" * 5000) == f"'{'a' * 179}... (5,002 characters)"


@pytest.mark.parametrize("value", [16**5000, [16**5000], {"a": 16**5000}], ids=["by itself", "in a list", "in a table"])
def test_a_number_that_python_does_not_write_is_shown_by_its_size(value):
    assert "bits" in shown(value) or "too large to show" in shown(value)


def test_a_value_of_very_many_levels_is_shown_by_its_kind():
    value = []
    for _ in range(100_000):
        value = [value]
    assert shown(value) == "a list that is too large to show"

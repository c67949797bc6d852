"""The prompt language of causal tasks."""

import pytest

from noback.errors import InputError
from noback.tasks.prompt import parse_prompt


def rendered(prompt, choice="", /, **values):
    return parse_prompt(prompt, "the prompt").render(values, choice)


@pytest.mark.parametrize(
    ("blank", "shown"),
    [
        ("{text}", "Dogs bark."),
        ("{text:-}", "Dogs bark"),
        ("{text:.}", "Dogs bark"),
        ("{text:l}", "dogs bark."),
        ("{text:u}", "Dogs bark."),
    ],
)
def test_a_blank_shows_its_column_as_asked(blank, shown):
    assert rendered(f"<{blank}>", text="Dogs bark.") == f"<{shown}>"


def test_only_a_full_stop_is_taken_off_as_a_full_stop():
    assert rendered("{text:.}", text="Do dogs bark?") == "Do dogs bark?"


def test_a_choice_takes_the_place_of_its_marker():
    assert rendered("{query:@placeholder}", "Paris", query="In @placeholder it rains") == "In Paris it rains"


def test_a_choice_stands_where_it_is_named():
    assert rendered("{choice:l}", "It rained.") == "it rained."


def test_two_braces_are_one_brace_of_the_text():
    assert rendered('{{"a": {text}}}', text="1") == '{"a": 1}'


def test_columns_are_named_in_their_order_once():
    assert parse_prompt("{b} {a} {b:l} {choice}", "the prompt").columns == ("b", "a")


def test_an_answer_follows_after_a_space_or_on_a_line_of_its_own():
    assert parse_prompt("{text} It was", "the prompt").glue == " "
    assert parse_prompt("{text}\nYes or No?\n", "the prompt").glue == ""


def test_a_prompt_with_renamed_columns_keeps_all_else():
    assert parse_prompt("{{x}} {a:l} {b}", "the prompt").renamed({"a": "first"}) == "{{x}} {first:l} {b}"


@pytest.mark.parametrize("text", ["{text", "text}", "{}", "a { b"])
def test_a_lone_brace_is_refused_with_its_place(text):
    with pytest.raises(InputError, match=r"has a lone .* at character"):
        parse_prompt(text, "the prompt")


def test_an_unknown_change_is_refused():
    with pytest.raises(InputError, match=r"asks for '\{text:x\}' at character 3; after the colon expected one of"):
        parse_prompt("a {text:x}", "the prompt")

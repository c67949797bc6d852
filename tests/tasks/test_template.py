"""The template language: what each piece means, and where an error points."""

import pytest

from noback.errors import InputError
from noback.tasks.template import Literal, Sentence, Special, parse_template

SENTENCES = ("the Film ends.", "Some people left")


def piece_of(text):
    """The one piece under test, in a template that is otherwise sound."""
    (piece, *_) = parse_template(f"*{text}**sent_0**mask*").pieces
    return piece


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("cls", Special("cls")),
        ("sep+", Special("sep+")),
        ("sent_0", Sentence(0)),
        ("sent_1", Sentence(1)),
        ("sent_12", Sentence(12)),
        ("+sent_0", Sentence(0, after_space=True)),
        ("sent-_0", Sentence(0, change="-")),
        ("sentl_0", Sentence(0, change="l")),
        ("+sentl_1", Sentence(1, after_space=True, change="l")),
        ("sentu_0", Sentence(0, change="u")),
        ("_It_was", Literal(" It was")),
        ("_so", Literal(" so")),
        (".", Literal(".")),
        ("?", Literal("?")),
        (",", Literal(",")),
        (":", Literal(":")),
        ("x", Literal("x")),
        ("_", Literal(" ")),
        ("It", Literal("It")),
        ("! Then", Literal("! Then")),
    ],
)
def test_a_piece_parses_to_what_it_means(text, piece):
    assert piece_of(text) == piece


def test_a_mask_parses_to_the_mask_token():
    assert parse_template("*mask**sent_0*").pieces[0] == Special("mask")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sent_0", "the Film ends."),
        ("sent_1", "Some people left"),
        ("+sent_0", " the Film ends."),
        ("sent-_0", "the Film ends"),
        ("sentl_1", "some people left"),
        ("+sentl_1", " some people left"),
        ("sentu_0", "The Film ends."),
        ("_It_was", " It was"),
        (".", "."),
    ],
)
def test_a_piece_renders_as_the_prompt_shows_it(text, shown):
    prompt = parse_template(f"*{text}**mask**sent_0*").render(SENTENCES)
    assert prompt == f"{shown}<mask>the Film ends."


@pytest.mark.parametrize("directive", ["sent_0", "+sent_0", "sent-_0", "sentl_0", "+sentl_0", "sentu_0"])
def test_an_empty_sentence_renders_without_error(directive):
    assert parse_template(f"*{directive}**mask*").render(("",)).strip() == "<mask>"


def test_a_change_of_case_touches_the_first_letter_only():
    assert Sentence(0, change="l").render("USA Today") == "uSA Today"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("*cls**sent_0*_It_was*mask*.*sep+*", "the Film ends. It was<mask>."),
        ("*cls**mask*:*+sent_0**sep+*", "<mask>: the Film ends."),
        ("*cls**sent-_0*?*mask*,*+sentl_1**sep+*", "the Film ends?<mask>, some people left"),
        ("*cls**sent_0**mask*,*+sentl_1**sep+*", "the Film ends.<mask>, some people left"),
    ],
)
def test_the_templates_of_the_paper_render_to_their_prompts(template, prompt):
    assert parse_template(template).render(SENTENCES) == prompt


def test_the_mask_shows_as_the_given_text():
    assert parse_template("*sent_0**mask*").render(("so ",), mask="____") == "so ____"


def test_pieces_keep_their_order():
    pieces = parse_template("*cls**sent_0*_It_was*mask*.*sep+*").pieces
    assert pieces == (
        Special("cls"),
        Sentence(0),
        Literal(" It was"),
        Special("mask"),
        Literal("."),
        Special("sep+"),
    )


@pytest.mark.parametrize(
    ("template", "count"), [("*sent_0**mask*", 1), ("*sent_1**mask*", 2), ("*mask**sent_0**sent_2*", 3)]
)
def test_a_template_needs_as_many_sentences_as_its_highest_number(template, count):
    assert parse_template(template).sentences == count


@pytest.mark.parametrize(
    "directive",
    ["snt_0", "sep", "msk", "cls_0", "sentx_0", "sent_a", "sent", "label_0", "+mask", "+sent-_0", "+sentu_0", "so"],
)
def test_an_unknown_directive_is_named(directive):
    with pytest.raises(InputError, match="unknown directive") as caught:
        parse_template(f"*cls**sent_0**{directive}**mask*")
    assert f"*{directive}*" in str(caught.value)


@pytest.mark.parametrize(
    ("directive", "nearest"), [("snt_0", "sent_0"), ("sep", "sep+"), ("msk", "mask"), ("clss", "cls")]
)
def test_an_unknown_directive_comes_with_the_nearest_known_one(directive, nearest):
    with pytest.raises(InputError) as caught:
        parse_template(f"*sent_0**mask**{directive}*")
    assert f"did you mean {nearest!r}?" in str(caught.value)


@pytest.mark.parametrize("before", ["*", "*cls**", "*cls**sent_0*_It_was*"])
def test_an_unknown_directive_is_pointed_at_by_its_first_character(before):
    with pytest.raises(InputError, match=rf"at character {len(before) + 1}\b"):
        parse_template(f"{before}snt_0**mask*")


@pytest.mark.parametrize("typo", ["sent0", "+sentl1", "sent-0"])
def test_a_misspelt_directive_is_not_taken_for_text(typo):
    with pytest.raises(InputError, match="unknown directive"):
        parse_template(f"*cls**sent_0**mask*,*{typo}**sep+*")


def test_a_template_without_a_mask_is_refused():
    with pytest.raises(InputError, match=r"has 0 masks; expected exactly one \*mask\*"):
        parse_template("*cls**sent_0*_It_was*.*sep+*")


def test_a_template_with_two_masks_is_refused():
    with pytest.raises(InputError, match=r"has 2 masks; expected exactly one \*mask\*"):
        parse_template("*cls**sent_0**mask**mask*")


def test_a_template_without_a_sentence_is_refused():
    with pytest.raises(InputError, match=r"shows no sentence; expected a piece such as \*sent_0\*"):
        parse_template("*cls*_It_was*mask*.*sep+*")


def test_an_empty_template_is_refused():
    with pytest.raises(InputError, match="has 0 masks"):
        parse_template("")

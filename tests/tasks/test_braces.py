"""Templates in braces: the same prompts as between stars, whatever the mask is called."""

import pytest

from noback.errors import InputError
from noback.tasks import Task, with_columns
from noback.tasks.braces import is_braced, parse_braces
from noback.tasks.data import Example
from noback.tasks.spec import load_spec, spec_of, task_names
from noback.tasks.template import parse_template

WORDS = {"0": "terrible", "1": "great"}


def spec_by(template, **entries):
    return spec_of({"name": "own", "template": template, "words": WORDS, **entries}, "own.toml")


@pytest.mark.parametrize(
    ("braces", "stars"),
    [
        ("{sentence} It was {mask}.", "*cls**sent_0*_It_was*mask*.*sep+*"),
        ("{sentence} It was [MASK].", "*cls**sent_0*_It_was*mask*.*sep+*"),
        ("{sentence} It was<mask>.", "*cls**sent_0*_It_was*mask*.*sep+*"),
        ("{mask}: {text}", "*cls**mask*:*+sent_0**sep+*"),
        ("{a}{mask}, {b}", "*cls**sent_0**mask*,*+sent_1**sep+*"),
        ("{a} {b} {mask}", "*cls**sent_0**+sent_1**mask**sep+*"),
        ("{a} Was {a} so? {mask}", "*cls**sent_0*_Was*+sent_0*_so?*mask**sep+*"),
    ],
)
def test_braces_give_the_pieces_of_the_same_template_between_stars(braces, stars):
    assert parse_braces(braces).pieces == parse_template(stars).pieces


@pytest.mark.parametrize("mask", ["{mask}", "[MASK]", "<mask>"])
def test_the_tokens_are_those_of_the_shipped_task(mask, tokenizer):
    examples = [Example(("a warm and funny film",), 1)]
    encoded = []
    for spec in (load_spec("sst2"), spec_by(f"{{sentence}} It was {mask}.")):
        task = Task(spec, tokenizer)
        task.add("train", examples)
        encoded.append(task.digest())
    assert encoded[0] == encoded[1]


def test_columns_are_the_placeholders_in_their_order():
    assert spec_by("{premise}? {mask}, {hypothesis}").columns == ("premise", "hypothesis", "label")


@pytest.mark.parametrize(
    ("blank", "prompt"),
    [
        ("{a:-}", "I saw it"),
        ("{a:.}", "I saw it"),
        ("{a:l}", "I saw it."),
        ("{a:u}", "I saw it."),
        ("{a}", "I saw it."),
    ],
)
def test_a_blank_changes_its_text_as_in_a_prompt(blank, prompt):
    assert spec_by(f"{blank} {{mask}}").parsed.render(("I saw it.",)) == f"{prompt}<mask>"


def test_braces_in_pairs_are_text():
    assert spec_by("{{{a}}} {mask}").parsed.render(("x",)) == "{x}<mask>"


@pytest.mark.parametrize("name", task_names())
def test_no_shipped_template_is_read_as_one_in_braces(name):
    assert not is_braced(load_spec(name).template)


def test_a_template_between_stars_may_hold_braces_as_text():
    template = "*cls**sent_0*_{x}*mask*.*sep+*"
    assert not is_braced(template)
    assert parse_template(template).render(("so",)) == "so {x}<mask>."


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{a} It was", "has no mask; expected one {mask}, where the label word goes"),
        ("{a} {mask} or [MASK]", "has 2 masks; expected one {mask}"),
        ("It was {mask}", "shows no column; expected one of the data's in braces"),
        ("{a {mask}", "has a lone '{' at character 1"),
        ("{a:@b} {mask}", "a masked model's template has no choices"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_with_a_sentence(template, sentence):
    with pytest.raises(InputError) as caught:
        spec_by(template)
    assert sentence in str(caught.value)


def test_sentences_beside_braces_must_agree_with_them():
    assert spec_by("{a} {mask}", sentences=["a"]).sentences == ("a",)
    with pytest.raises(InputError, match="names the sentences b; its template names them"):
        spec_by("{a} {mask}", sentences=["b"])


def test_a_specification_comes_back_from_its_table():
    spec = spec_by("{a:l} {b} {mask}")
    assert spec_of(spec.table(), "again") == spec


def test_columns_of_other_names_stand_in_the_template():
    spec = with_columns(spec_by("{a:l}: {b} {mask}"), "text,title,stars")
    assert (spec.template, spec.columns) == ("{text:l}: {title} {mask}", ("text", "title", "stars"))


@pytest.mark.parametrize("entry", [{"template": "{a} {mask}"}, {"prompt": "{a} It was"}], ids=str)
def test_a_word_with_the_space_before_it_is_the_word(entry):
    words = {"0": " terrible", "1": "  great"}
    assert spec_of({"name": "own", "words": words, **entry}, "own.toml").words == WORDS


def test_an_empty_word_is_refused_by_its_label():
    with pytest.raises(InputError, match="label '1' of task 'own' has an empty label word; write one for it"):
        spec_of({"name": "own", "template": "{a} {mask}", "words": {"0": "bad", "1": " "}}, "own.toml")

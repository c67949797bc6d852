"""The tasks that ship: each one sound, and those of the paper as the paper has them."""

import pytest

from noback.errors import InputError
from noback.tasks import load_spec, task_names
from noback.tasks.label_words import label_word_ids
from noback.tasks.spec import spec_of
from noback.tasks.template import parse_template

IT_WAS = "*cls**sent_0*_It_was*mask*.*sep+*"
THIS_IS = "*cls**sent_0*_This_is*mask*.*sep+*"
TOPIC = "*cls**mask*:*+sent_0**sep+*"
ENTAILS = "*cls**sent-_0*?*mask*,*+sentl_1**sep+*"
SAME = "*cls**sent_0**mask*,*+sentl_1**sep+*"

SENTIMENT = {"0": "terrible", "1": "great"}
GRADES = {"0": "terrible", "1": "bad", "2": "okay", "3": "good", "4": "great"}
KINDS = {"0": "Description", "1": "Entity", "2": "Expression", "3": "Human", "4": "Location", "5": "Number"}
THREE_WAY = {"contradiction": "No", "entailment": "Yes", "neutral": "Maybe"}
TWO_WAY = {"not_entailment": "No", "entailment": "Yes"}
ALIKE = {"0": "No", "1": "Yes"}

# task -> template, label words, metric, max length, limit of the first sentence: the published table
PUBLISHED = {
    "sst2": (IT_WAS, SENTIMENT, "accuracy", 128, None),
    "mr": (IT_WAS, SENTIMENT, "accuracy", 128, 110),
    "cr": (IT_WAS, SENTIMENT, "accuracy", 128, 110),
    "mpqa": (IT_WAS, SENTIMENT, "accuracy", 128, 110),
    "sst5": (IT_WAS, GRADES, "accuracy", 128, 110),
    "subj": (THIS_IS, {"0": "subjective", "1": "objective"}, "accuracy", 128, 110),
    "cola": (THIS_IS, {"0": "incorrect", "1": "correct"}, "mcc", 128, None),
    "trec": (TOPIC, KINDS, "accuracy", 128, 110),
    "mnli": (ENTAILS, THREE_WAY, "accuracy", 256, 240),
    "snli": (ENTAILS, THREE_WAY, "accuracy", 256, None),
    "rte": (ENTAILS, TWO_WAY, "accuracy", 256, 240),
    "qnli": (ENTAILS, TWO_WAY, "accuracy", 128, None),
    "qqp": (SAME, ALIKE, "f1", 128, None),
    "mrpc": (SAME, ALIKE, "f1", 128, None),
}

MASKED = [name for name in task_names() if not load_spec(name).is_causal]


def test_every_task_of_the_paper_ships_and_one_of_noback():
    assert set(MASKED) == {*PUBLISHED, "reviews"}


@pytest.mark.parametrize("name", task_names())
def test_a_task_goes_by_the_name_of_its_file(name):
    assert load_spec(name).name == name


@pytest.mark.parametrize("name", task_names())
def test_a_task_says_what_it_is_about(name):
    assert load_spec(name).about


@pytest.mark.parametrize("name", MASKED)
def test_a_template_parses_and_shows_every_sentence_column(name):
    spec = load_spec(name)
    assert parse_template(spec.template).sentences == len(spec.sentences)


@pytest.mark.parametrize("name", MASKED)
def test_every_label_word_of_a_masked_task_is_one_token_of_the_embedded_model(name, tokenizer):
    spec = load_spec(name)
    assert len(label_word_ids(spec.words, tokenizer)) == len(spec.labels)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_template_is_the_published_one(name):
    assert load_spec(name).template == PUBLISHED[name][0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_labels_and_words_are_the_published_ones(name):
    assert dict(load_spec(name).words) == PUBLISHED[name][1]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_metric_is_the_published_one(name):
    assert load_spec(name).metric == PUBLISHED[name][2]


@pytest.mark.parametrize("name", PUBLISHED)
def test_limits_are_the_published_ones(name):
    spec = load_spec(name)
    assert (spec.max_length, spec.limit_of(0)) == PUBLISHED[name][3:]


@pytest.mark.parametrize("name", MASKED)
def test_no_sentence_but_the_first_has_a_limit_of_its_own(name):
    assert load_spec(name).limit_of(1) is None


# One's own task

OWN = {"name": "own", "template": IT_WAS, "words": SENTIMENT, "sentences": ["text"]}
OWN_TOML = f'name = "own"\ntemplate = "{IT_WAS}"\nsentences = ["text"]\n[words]\n0 = "terrible"\n1 = "great"\n'


def refusal(**entries):
    """The sentence with which a task's table is refused; an entry of None is left out."""
    table = {key: value for key, value in {**OWN, **entries}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        spec_of(table, "own.toml")
    return str(caught.value)


def test_a_task_file_of_ones_own_is_loaded_by_its_path(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(OWN_TOML)
    assert load_spec(str(file)) == spec_of(OWN, "own.toml")


def test_an_unknown_task_comes_with_the_nearest_name():
    with pytest.raises(InputError, match=r"unknown task 'sst3'; did you mean 'sst[25]'\?"):
        load_spec("sst3")


def test_a_task_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml' does not exist"):
        load_spec(str(tmp_path / "nowhere.toml"))


def test_a_task_file_that_is_no_toml_is_named(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("name = own")
    with pytest.raises(InputError, match=r"own\.toml' is not TOML"):
        load_spec(str(file))


@pytest.mark.parametrize("key", ["name", "template", "words", "sentences"])
def test_a_missing_entry_is_named(key):
    assert refusal(**{key: None}) == f"task file 'own.toml' lacks the entry {key!r}"


def test_an_unknown_entry_comes_with_the_nearest_name():
    assert "unknown entry 'templat'; did you mean 'template'?" in refusal(templat=IT_WAS)


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", 5), ("template", ["x"]), ("words", ["terrible", "great"]), ("sentences", "text"), ("max_length", "128")],
)
def test_an_entry_of_the_wrong_kind_is_named(key, value):
    assert f"entry {key!r} of task file 'own.toml' is {value!r}" in refusal(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("words", {"0": 1, "1": "great"}),
        ("words", {"0": ["bad"], "1": "great"}),
        ("sentences", [1]),
        ("sentence_limits", [1.5]),
    ],
)
def test_a_wrong_kind_within_an_entry_is_named(key, value):
    assert key in refusal(**{key: value})


@pytest.mark.parametrize(("key", "value"), [("max_length", 0), ("max_length", -1), ("sentence_limits", [0])])
def test_a_limit_below_one_is_refused(key, value):
    assert f"{key} of task 'own'" in refusal(**{key: value})


def test_one_label_word_is_too_few():
    assert "has 1 label words; expected at least two" in refusal(words={"0": "great"})


def test_an_unknown_metric_comes_with_the_known_ones():
    assert "'auc'; expected one of accuracy, f1, mcc" in refusal(metric="auc")


def test_a_template_that_shows_more_sentences_than_there_are_columns_is_refused():
    assert "shows 2 sentences but the task names 1 columns" in refusal(template=SAME)

"""Point 6: one's own labels in one line, without a task file."""

import json
import shlex
import tomllib

import pytest

from noback import RunConfig
from noback.cli.flags import config_from
from noback.cli.main import _parser
from noback.config import config_of
from noback.errors import InputError
from noback.flag_names import FLAGS
from noback.journal import read_header
from noback.reporting.command import command_to_repeat
from noback.tasks import spec_for
from tests.conftest import NEGATIVE, POSITIVE, write_rows

TEMPLATE, WORDS = "{sentence} It was {mask}.", "0=terrible,1=great"


@pytest.fixture
def mine(tmp_path):
    """A CSV file with a column of texts and one of labels."""

    def write(name="my.csv", text="sentence", label="label", labels=("0", "1")):
        rows = [(one, labels[gold]) for gold, texts in enumerate((NEGATIVE, POSITIVE)) for one in texts] * 3
        file = tmp_path / name
        file.write_text(f"{text},{label}\n" + "".join(f'"{one}",{gold}\n' for one, gold in rows))
        return file

    return write


@pytest.fixture
def trained(noback, tiny_folder, tmp_path):
    """Trains a step or two and returns the run's folder."""

    def call(*flags, model=tiny_folder, out=tmp_path / "run"):
        code, _, err = noback("train", "--model", model, "--steps", 2, "--out", out, *flags)
        assert code == 0, err
        return out

    return call


# One line


def test_one_line_trains_as_the_same_task_from_a_file_does(mine, trained, tmp_path):
    data = mine()
    own = trained("--data", data, "--template", TEMPLATE, "--words", WORDS)
    file = trained("--data", data, "--task", "sst2", out=tmp_path / "file")
    headers = [read_header(folder / "journal") for folder in (own, file)]
    assert headers[0]["data"] == headers[1]["data"]
    assert headers[0]["task"] == {
        **headers[1]["task"], "name": "my", "template": TEMPLATE, "about": "", "sentences": ["sentence"],
    }  # fmt: skip


def test_the_run_is_named_after_the_data(mine, noback, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--data", mine("mood.csv"), "--template", TEMPLATE, "--words", WORDS]
    code, out, _ = noback("train", "--model", tiny_folder, "--steps", 1, "--json", *flags)
    assert (code, json.loads(out)["task"], json.loads(out)["run"]) == (0, "mood", "runs/mood-001")
    assert "task mood, base weights" in noback("journal", "runs/mood-001")[1]


@pytest.mark.parametrize("mask", ["{mask}", "[MASK]", "<mask>"])
@pytest.mark.parametrize("words", ["neg= bad,pos= good", 'neg=" bad",pos=good', "neg=bad, pos=good"])
def test_any_mask_and_words_with_their_space_give_one_task(mask, words, mine):
    data = str(mine(labels=("neg", "pos")))
    spec = spec_for("reviews", None, f"{{sentence}} It was {mask}.", words, data)
    assert spec.parsed.pieces == spec_for("sst2").parsed.pieces
    assert spec.words == {"neg": "bad", "pos": "good"}


def test_a_template_without_a_mask_is_a_causal_models_prompt(mine, trained, tiny_causal_folder):
    flags = ["--data", mine(text="text"), "--template", r"Review: {text}\nSentiment:", "--words", "0= bad,1=good"]
    task = read_header(trained(*flags, model=tiny_causal_folder) / "journal")["task"]
    assert (task["prompt"], task["words"]) == ("Review: {text}\nSentiment:", {"0": "bad", "1": "good"})
    assert task["sentences"] == ["text"]
    assert not task["template"]


@pytest.mark.parametrize("columns", ["stars", "text,stars"])
def test_the_label_column_is_label_or_the_last_of_columns(columns, mine, trained):
    flags = ["--data", mine(text="text", label="stars"), "--template", "{text} {mask}", "--words", WORDS]
    assert read_header(trained(*flags, "--columns", columns) / "journal")["task"]["label"] == "stars"


# Over a task


def test_template_and_words_replace_those_parts_of_a_task():
    spec = spec_for("rte", None, "{sentence1} So {sentence2}? {mask}.", "a=Yes,b=No")
    whole = spec_for("rte")
    assert (spec.name, spec.max_length, spec.sentence_limits) == ("rte", 256, (240,))
    assert spec_for("rte", None, words="a=Yes,b=No").template == whole.template
    assert spec_for("rte", None, "{sentence1} {mask} {sentence2}").words == whole.words
    assert spec_for("rte", None, "{text} {mask}").sentence_limits == ()


def test_a_prompt_replaces_a_causal_tasks_prompt_and_words_its_choices():
    spec = spec_for("copa", None, "{premise:.} What then? {question}")
    assert (spec.choices, spec.continuation, list(spec.replace)) == (("choice1", "choice2"), "{choice:l}", ["question"])
    assert not spec_for("copa", None, "{premise:.} Then").replace
    labelled = spec_for("instructions", None, words="a=good,b=bad")
    assert (labelled.answer, labelled.metric, labelled.max_new_tokens) == ("words", "accuracy", 0)


def test_a_template_between_stars_serves_on_the_line_too():
    spec = spec_for("reviews", "a,b,c", "*cls**sent_0*?*mask*,*+sentl_1**sep+*", WORDS, "my.csv")
    assert (spec.name, spec.sentences, spec.label) == ("my", ("a", "b"), "c")


def test_words_alone_keep_the_embedded_data():
    assert spec_for("reviews", None, "{sentence} A {mask} film.", "0=bad,1=good").name == "reviews"


# Recorded, resumed, repeated


def test_the_options_are_recorded_resumed_and_repeated(mine, trained, noback, tmp_path):
    template = '{sentence} It\'s "{mask}".'
    run = trained("--data", mine(), "--template", template, "--words", '1=great,0=" terrible"')
    table = tomllib.loads((run / "run.toml").read_text())
    assert (table["template"], table["words"]) == (template, "1=great,0=terrible")
    header = read_header(run / "journal")
    assert list(header["task"]["words"].items()) == [("1", "great"), ("0", "terrible")]
    assert noback("resume", run)[0] == 0
    _, *words = shlex.split(" ".join(command_to_repeat(header["config"], FLAGS)))
    assert config_from(_parser("train").parse_args(words)) == config_of(header["config"])
    page = tmp_path / "report.md"
    assert noback("report", run, "--markdown", "--out", page)[0] == 0
    text = page.read_text()
    assert "task my" in text
    assert "1=great,0=terrible" in text
    assert json.loads(noback("runs", run.parent, "--json")[1])["runs"][0]["task"] == "my"
    assert noback("evaluate", run)[0] == 0
    assert noback("predict", run, "a warm film")[0] == 0


def test_a_changed_word_is_refused_on_resume(mine, trained, noback):
    run = trained("--data", mine(), "--template", TEMPLATE, "--words", WORDS)
    file = run / "run.toml"
    file.write_text(file.read_text().replace("1=great", "1=good"))
    code, _, err = noback("resume", run)
    assert code == 2
    assert "words in" in err


@pytest.mark.parametrize(
    "words", [WORDS, {"0": "terrible", "1": "great"}, {"0": " terrible", "1": " great"}, "0= terrible, 1= great"]
)
def test_a_text_and_a_table_of_words_are_the_same_configuration(words):
    config = config_of({"template": TEMPLATE, "words": words})
    assert config == RunConfig(template=TEMPLATE, words=words)
    assert config.words == WORDS
    assert config.digest() == RunConfig(template=TEMPLATE, words=WORDS).digest()


def test_another_order_of_the_labels_is_another_run():
    assert RunConfig(words="0=a,1=b").digest() != RunConfig(words="1=b,0=a").digest()


def test_a_toml_file_gives_the_words_as_a_table(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('template = "{text} {mask}"\n[words]\n1 = "good"\n0 = " bad"\n')
    found = config_from(_parser("train").parse_args(["train", "--config", str(file)]))
    assert (found.template, found.words) == ("{text} {mask}", "1=good,0=bad")


@pytest.mark.parametrize("command", [("epsilon", "--probes", 1), ("baseline", "zero-shot"), ("compare",)])
def test_commands_that_share_the_runs_flags_take_them(command, mine, noback, tiny_folder, tmp_path):
    flags = ["--data", mine("mood.csv"), "--template", TEMPLATE, "--words", WORDS, "--model", tiny_folder]
    more = [] if command[0] == "baseline" else ["--out", tmp_path / "out", "--objectives", "cross_entropy"]
    code, out, err = noback(*command, *flags, "--steps", 1, *more, "--json")
    assert code == 0, err
    assert json.loads(out)["task"] == "mood"


# What is refused


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--words", "0=bad,0=good"], "words name the label '0' twice"),
        (["--words", "0=,1=good"], "words have no word for the label '0'"),
        (["--words", "0=good,1=good"], "the same word 'good'"),
        (["--words", "0=okayish,1=good"], "label word 'okayish' is 2 tokens"),
        (["--words", "0=b\x1bad,1=good"], "with a control character"),
        (["--words", "0=bad"], "has 1 label words; expected at least two"),
        (["--words", "bad"], "expected LABEL=WORD with commas between"),
        (["--words", "0=bad,2=good"], 'train with a word for each label of the data: --words "0=bad,1=..."'),
        (["--template", "{sentence} It was"], "has no mask and model"),
        (["--template", "{sentence} {mask} <mask>"], "has 2 masks; expected one {mask}"),
        (["--template", "{sentance} {mask}"], "has no column 'sentance' (it has: sentence, label); did you mean"),
        (["--template", "It was {mask}"], "shows no column"),
        (["--template", "It was"], "shows no column"),
        (["--template", "{sentence} \x07{mask}"], "holds a control character"),
        (["--template", "{sentence {mask}"], "has a lone '{' at character 1"),
        (["--columns", "mood"], "has no column 'mood'"),
    ],
)
def test_a_line_that_cannot_serve_is_refused_with_one_sentence(flags, sentence, mine, noback, tiny_folder, tmp_path):
    given = ["--data", mine(), "--template", TEMPLATE, "--words", WORDS, *flags]
    code, out, err = noback("train", "--model", tiny_folder, "--out", tmp_path / "run", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not (tmp_path / "run").exists()


def test_a_mask_for_a_causal_model_is_refused(mine, noback, tiny_causal_folder):
    given = ["--data", mine(), "--template", TEMPLATE, "--words", WORDS]
    code, _, err = noback("train", "--model", tiny_causal_folder, *given)
    assert code == 2
    assert "has a mask and model" in err
    assert "end the template before the mask" in err


def test_a_mask_without_words_is_refused():
    with pytest.raises(InputError, match="has a mask and the task no label words; give them with --words"):
        spec_for("instructions", None, TEMPLATE)


def test_a_label_without_a_word_names_the_words_option_with_every_label(mine, noback, tmp_path):
    rows = [{"sentence": "a film", "label": label} for label in ("neg", "pos", "meh")]
    code, _, err = noback("train", "--data", write_rows(tmp_path / "d.jsonl", rows))
    assert code == 2
    assert '--words "meh=...,neg=...,pos=..."' in err


def test_words_in_any_order_are_evaluated_as_they_were_trained(mine, trained, noback):
    run = trained("--data", mine(labels=("neg", "pos")), "--template", TEMPLATE, "--words", "pos=great,neg=terrible")
    code, _, err = noback("evaluate", run)
    assert code == 0, err

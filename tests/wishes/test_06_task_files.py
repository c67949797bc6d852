"""Point 6: a shipped task as a file to start from, and a task file made by looking at the data."""

import json

import pytest

from noback.tasks import load_spec, task_names
from tests.conftest import NEGATIVE, POSITIVE, write_rows


@pytest.fixture
def data(tmp_path):
    """Writes rows, each text once with each label in turn."""

    def write(*labels, name="my.jsonl", text="text", label="label", **more):
        texts = (NEGATIVE + POSITIVE) * 3
        rows = [{text: one, label: labels[place % len(labels)], **more} for place, one in enumerate(texts)]
        return write_rows(tmp_path / name, rows)

    return write


@pytest.fixture
def made(noback, tmp_path):
    """Makes a task file and returns what was said of it."""

    def call(file, *flags):
        code, out, err = noback("tasks", "new", "--data", file, "--out", tmp_path / "new.toml", "--json", *flags)
        assert code == 0, err
        return json.loads(out)

    return call


def refused(noback, *words):
    code, out, err = noback("tasks", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


@pytest.mark.parametrize("name", task_names())
def test_a_shipped_task_printed_as_toml_is_the_same_task(name, noback, tmp_path):
    code, out, _ = noback("tasks", name, "--toml")
    assert code == 0
    file = tmp_path / "mine.toml"
    file.write_text(out)
    again, spec = load_spec(str(file)), load_spec(name)
    assert again.table() == spec.table()
    assert again.labels == spec.labels


def test_toml_is_of_one_task(noback):
    assert "--toml prints one task" in refused(noback, "--toml")
    assert "--toml prints one task" in refused(noback, "rte", "--toml", "--json")


def test_a_new_task_trains_on_the_data_it_was_made_from(data, noback, made, tiny_folder, tmp_path):
    file = data("neg", "pos", label="mood", id="x1")
    found = made(file, "--model", tiny_folder)
    assert (found["texts"], found["label"], found["left_out"]) == (["text"], "mood", ["id"])
    assert (found["counts"], found["to_fill_in"]) == ({"neg": 12, "pos": 12}, [])
    assert found["words"] == {"neg": "negative", "pos": "positive"}
    assert found["command"].startswith(f"noback train --task {tmp_path / 'new.toml'} --data {file} --model ")
    task = ["--task", tmp_path / "new.toml", "--data", file]
    code, _, err = noback("train", "--model", tiny_folder, *task, "--steps", 1, "--out", tmp_path / "run")
    assert code == 0, err


def test_a_new_task_for_a_causal_model_has_a_prompt(data, made, tiny_causal_folder, tmp_path):
    made(data("business", "sports"), "--model", tiny_causal_folder)
    spec = load_spec(str(tmp_path / "new.toml"))
    assert (spec.prompt, spec.words) == ("{text} This is", {"business": "business", "sports": "sports"})


@pytest.mark.parametrize(
    ("labels", "column", "words"),
    [
        (("Sports", "Weather"), "topic", {"Sports": "Sports", "Weather": "weather"}),
        ((1, 2, 3, 4, 5), "stars", {"1": "terrible", "2": "bad", "3": "okay", "4": "good", "5": "great"}),
        ((0, 1), "label", {"0": "", "1": ""}),
        (("world/politics", "world/sports"), "label", {"world/politics": "politics", "world/sports": "sports"}),
        (("qzx", "good"), "label", {"good": "good", "qzx": ""}),
        ((True, False), "label", {"False": "No", "True": "Yes"}),
    ],
    ids=str,
)
def test_a_word_is_proposed_where_a_label_says_what_it_means(labels, column, words, data, made):
    assert made(data(*labels, label=column))["words"] == words


def test_a_label_without_a_word_is_to_be_filled_in_and_refused_until_then(data, made, noback, tmp_path):
    found = made(data(0, 1))
    assert found["to_fill_in"] == ["0", "1"]
    assert "# 12 rows; write a word here" in (tmp_path / "new.toml").read_text()
    assert "label '0' of task 'my' has an empty label word" in refused(noback, tmp_path / "new.toml")


def test_a_new_task_says_what_it_chose_and_what_to_fill_in(data, noback, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = noback("tasks", "new", "--data", data("good", "7").name)
    assert code == 0
    assert "my.jsonl: 24 rows; text in text, label in label" in out
    assert "no word was found for 7: write one for each in my.toml" in out
    assert "then train: noback train --task my.toml --data my.jsonl" in out


def test_pairs_of_texts_are_found_by_their_names(made, tmp_path):
    rows = [{"premise": f"A man {n}.", "hypothesis": "He is.", "label": ["Yes", "No"][n % 2]} for n in range(8)]
    found = made(write_rows(tmp_path / "p.jsonl", rows))
    assert (found["texts"], load_spec(found["file"]).template) == (
        ["premise", "hypothesis"], "{premise:.}? {mask}, {hypothesis}",
    )  # fmt: skip


@pytest.mark.parametrize("columns", ["note,mood", "mood"])
def test_columns_that_are_named_are_taken(columns, data, made):
    found = made(
        data("good", "bad", label="mood", note="a much longer text that says nothing" * 3), "--columns", columns
    )
    assert (found["texts"], found["label"]) == (["note"], "mood")


def test_a_file_that_exists_is_not_overwritten(data, noback, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("keep")
    assert "exists and is not overwritten" in refused(noback, "new", "--data", data("a", "b"), "--out", file)
    assert file.read_text() == "keep"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "tasks new needs data to look at"),
        (("--data", "nowhere.csv"), "does not exist"),
        (("--data", "hf:some/data"), "is a dataset of the hub; expected a file"),
        (("--data", "nowhere.csv", "--out", "new.txt"), "expected a name that ends in .toml"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(flags, sentence, noback):
    assert sentence in refused(noback, "new", *flags)


def test_data_without_a_label_is_refused(data, noback, tmp_path):
    rows = [{"text": f"text {n}", "number": n} for n in range(50)]
    sentence = refused(noback, "new", "--data", write_rows(tmp_path / "d.jsonl", rows), "--out", tmp_path / "x.toml")
    assert "no column of the data looks like a label's" in sentence
    assert "--columns TEXT[,TEXT],LABEL" in sentence
    sentence = refused(noback, "new", "--data", data("a", "b"), "--out", tmp_path / "x.toml", "--columns", "mood")
    assert "the data has no column 'mood' (it has: text, label)" in sentence


def test_flags_of_a_new_task_need_a_new_task(noback):
    assert "--data is for a new task" in refused(noback, "rte", "--data", "my.csv")

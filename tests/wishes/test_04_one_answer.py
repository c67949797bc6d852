"""A score of a model that answers one label to nearly everything never stands alone."""

import json
from dataclasses import replace

import pytest

from noback import RunConfig, Sgd, TwoSided, train
from noback.cli.train import summary
from noback.counts import one_answer_score, one_answer_warning
from tests.conftest import NEGATIVE, POSITIVE, write_rows
from tests.test_verdict import judged, look

SKEWED = [[1, 13], [2, 84]]  # 86 of 100 examples and 97 answers are the second label: F1 is 0.918


def test_one_answer_is_warned_of_with_metrics_that_count_every_label_alike():
    said = one_answer_warning(SKEWED, ["no", "yes"], "test set")
    assert "answers 'yes' to 97% of the test set, though no label is more than 86% of it" in said
    assert "macro F1 0.518, balanced accuracy 52.4%, MCC 0.10" in said


@pytest.mark.parametrize(
    "table",
    [
        [[40, 10], [10, 40]],  # both labels are answered
        [[3, 0], [0, 97]],  # nearly all examples have one label, and each is told
        [],
        [[0, 0], [0, 0]],
        [[1, 2], [3]],
        None,
    ],
)
def test_answers_that_tell_the_labels_apart_and_tables_of_nothing_are_not_warned_of(table):
    assert one_answer_warning(table, ["no", "yes"], "test set") is None


@pytest.mark.parametrize(
    ("metric", "score"),
    [("f1", 2 * 86 / 186), ("accuracy", 0.86), ("mcc", 0.0), ("balanced_accuracy", 0.5), ("loss", None)],
)
def test_the_score_of_one_answer_to_everything_is_known(metric, score):
    assert one_answer_score(SKEWED, metric) == (None if score is None else pytest.approx(score))


def test_the_verdict_says_the_same_of_the_validation_set():
    lines = [look(0, 50, 0.7), look(100, 50, 0.69, answered=(0, 100))]
    assert any("balanced accuracy 50.0%, MCC 0.00" in line for line in judged(*lines).evidence)


@pytest.fixture
def config(tiny_folder, tmp_path):
    """A tiny model on a set that is mostly one label; weights that went astray answer one label to everything."""
    rows = [{"sentence": f"{text} {n}", "label": 1} for text in POSITIVE for n in range(5)]
    rows += [{"sentence": text, "label": 0} for text in NEGATIVE]
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        write_rows(tmp_path / "data" / f"{split}.jsonl", rows)
    return RunConfig(
        model=str(tiny_folder), data=str(tmp_path / "data"), steps=2, batch=4, metric="f1", rule=Sgd(lr=1.0),
        estimator=TwoSided(eps=1e-1),
    )  # fmt: skip


def test_train_prints_f1_with_what_one_answer_gives_and_its_warning(config, tmp_path):
    result = train(config, tmp_path / "run")
    printed = summary(replace(result, warnings=(one_answer_warning(SKEWED, ["no", "yes"], "test set"),)))
    assert result.one_answer_score == pytest.approx(2 * 20 / 44)
    assert "f1 " in printed
    assert "after; one label as the answer to everything gives 0.909" in printed
    assert "  warning: the model answers 'yes' to 97% of the test set" in printed
    test = next(line for line in _lines(tmp_path / "run") if line.get("at") == "best")
    said = one_answer_warning(test["confusion"], ["terrible", "great"], "test set")  # as the verdict names labels
    assert result.warnings == ((said,) if said else ())


def test_the_page_shows_f1_beside_that_of_one_answer(config, tmp_path, noback):
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [{**line, "confusion": SKEWED} if line["kind"] == "test" else line for line in _lines(tmp_path / "run")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert noback("report", tmp_path / "run")[0] == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "f1 of one answer to all" in page
    assert "though no label is more than 86% of it" in page


def test_evaluate_shows_f1_beside_that_of_one_answer_and_warns(config, tmp_path, noback):
    train(config, tmp_path / "run")
    code, out, err = noback("evaluate", tmp_path / "run", "--at", "final")
    assert code == 0
    assert "(one label as the answer to everything gives 0.909)" in out
    assert "though no label is more than 83% of it" in " ".join(err.split())
    code, out, _ = noback("evaluate", tmp_path / "run", "--at", "final", "--json")
    values = json.loads(out)
    assert one_answer_warning(values["confusion"], ["terrible", "great"], "test set") in values["notes"]


def _lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

"""Point 9: `noback evaluate` gives the metrics, the confusion matrix with its labels' names, and the interval."""

import json

import pytest

from noback.counts import balanced_accuracy, macro_f1, mcc, wilson
from tests.conftest import NEGATIVE, POSITIVE, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_folder):
    from noback.cli.main import main

    folder = tmp_path_factory.mktemp("evaluated")
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE[:2])) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    flags = ["--model", tiny_folder, "--data", folder, "--steps", 2, "--out", folder / "run"]
    assert main(["train", *map(str, flags)]) == 0
    return folder / "run"


@pytest.fixture
def found(run, noback):
    code, out, _ = noback("evaluate", run, "--json")
    assert code == 0
    return json.loads(out)


def test_evaluate_gives_the_metrics_of_its_confusion_matrix(found):
    table = found["confusion"]
    assert [sum(row) for row in table] == [2, len(POSITIVE)]
    assert found["labels"] == ["0", "1"]
    assert found["accuracy"] == (table[0][0] + table[1][1]) / found["examples"]
    assert (found["macro_f1"], found["balanced_accuracy"], found["mcc"]) == (
        macro_f1(table), balanced_accuracy(table), mcc(table)
    )  # fmt: skip


def test_evaluate_gives_the_interval_of_the_accuracy(found):
    interval = wilson(found["accuracy"], found["examples"])
    assert found["interval"] == [interval.low, interval.high]
    assert interval.low < found["accuracy"] < interval.high or found["accuracy"] in (0, 1)


def test_evaluate_says_it_in_words_with_the_labels_by_name(run, found, noback):
    _, out, _ = noback("evaluate", run)
    first, second, third, heads, *rows = out.splitlines()
    low, high = found["interval"]
    assert first.startswith(
        f"accuracy {found['accuracy']:.1%} on {found['examples']} examples (test), weights of step "
    )
    assert first.endswith(f"; 95% interval {low:.1%} to {high:.1%}")
    assert second == (
        f"macro F1 {found['macro_f1']:.3f}, balanced accuracy {found['balanced_accuracy']:.1%}, "
        f"MCC {found['mcc']:.3f}, loss {found['loss']:.3f}"
    )
    assert third == "answers (columns) to the examples of each label (rows):"
    assert heads.split() == ["0", "(terrible)", "1", "(great)", "examples"]
    assert [row.split()[1:] for row in rows] == [
        [name, *map(str, counts), str(sum(counts))]
        for name, counts in zip(["(terrible)", "(great)"], found["confusion"], strict=True)
    ]

"""A comparison says what each of its rows tunes."""

import json
from dataclasses import replace

import pytest

from noback import Head, Lora, RunConfig
from noback.adapters import Full, Prefix
from noback.cli.compare import DESCRIPTION
from noback.comparing import what_is_tuned


@pytest.fixture
def flags(tiny_folder, data_folder, tmp_path):
    return ("--model", tiny_folder, "--data", data_folder, "--steps", 1, "--batch", 2, "--out", tmp_path / "all")


def test_rows_under_lora_say_what_is_tuned_in_each_and_why(flags, noback, tmp_path):
    objectives = ("--objectives", "cross_entropy,head/cross_entropy")
    code, out, _ = noback("compare", *flags, "--adapter", "lora", *objectives)
    assert code == 0
    assert "lora" in out
    assert "all weights, fresh head" in out
    assert "a fresh head has no place under adapter 'lora'" in out
    table = json.loads((tmp_path / "all" / "comparison.json").read_text())
    lora, head = table["rows"]
    assert (lora["adapter"], lora["tuned"], lora["lr"]) == ("lora", "lora", 5e-4)
    assert (head["adapter"], head["tuned"], head["lr"]) == ("head", "all weights, fresh head", 2e-5)
    assert 0 < lora["tuned_weights"] < head["tuned_weights"]
    assert f"{lora['tuned_weights']:,}" in out
    assert noback("report", tmp_path / "all")[0] == 0
    page = (tmp_path / "all" / "report.html").read_text(encoding="utf-8")
    assert "weights tuned" in page
    assert f'data-value="{head["tuned_weights"]}"' in page
    assert "share data, seeds and the number of forwards, not what is tuned" in page


def test_rows_that_tune_alike_have_no_note(flags, noback):
    code, out, _ = noback("compare", *flags, "--adapter", "lora", "--objectives", "cross_entropy", "--json")
    assert code == 0
    assert json.loads(out)["tuned_note"] == ""


def test_the_help_speaks_of_forwards():
    assert "budget" not in DESCRIPTION
    assert "number of forwards" in DESCRIPTION


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (Full(), "all weights"),
        (Full(tune="last:1"), "weights: last:1"),
        (Lora(), "lora"),
        (Prefix(), "prefix"),
        (Head(), "all weights, fresh head"),
        (Head(alone=True), "fresh head alone"),
    ],
)
def test_what_is_tuned_is_said_in_a_word_or_two(adapter, said):
    assert what_is_tuned(replace(RunConfig(), adapter=adapter).adapter) == said

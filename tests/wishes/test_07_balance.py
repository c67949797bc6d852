"""Point 7: skewed data. Batches with the labels in equal shares."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from noback.config import RunConfig
from noback.errors import InputError
from noback.journal import read_journal
from noback.tasks.balancing import balanced_places, label_weights, repeated_places
from noback.training import Interrupted, resume, train
from noback.tuned import tuned_run
from noback.watching import Silent
from tests.conftest import NEGATIVE, POSITIVE, write_rows

SKEWED = [0] * 90 + [1] * 10


@pytest.fixture
def skewed_folder(data_folder):
    """Training data of which nine in ten are negative."""
    rows = [{"sentence": f"{text}, {number}", "label": 0} for number in range(9) for text in NEGATIVE]
    write_rows(data_folder / "train.jsonl", rows + [{"sentence": text, "label": 1} for text in POSITIVE])
    return data_folder


def test_a_batch_of_skewed_data_has_the_labels_in_equal_shares():
    for step in range(40):
        counts = Counter(SKEWED[place] for place in balanced_places(SKEWED, step, 16, seed=3))
        assert counts == {0: 8, 1: 8}


def test_of_labels_that_do_not_divide_the_batch_none_is_favoured():
    golds = [0] * 80 + [1] * 15 + [2] * 5
    batches = [Counter(golds[place] for place in balanced_places(golds, step, 8, seed=3)) for step in range(30)]
    assert all(max(counts.values()) - min(counts.values()) <= 1 for counts in batches)
    assert sum(batches, Counter()) == {0: 80, 1: 80, 2: 80}


def test_every_example_comes_before_any_of_its_label_comes_again():
    drawn = [place for step in range(5) for place in balanced_places(SKEWED, step, 40, seed=1)]
    often = np.bincount(drawn, minlength=100)
    assert set(often[:90]) == {1, 2}  # 100 draws of 90
    assert set(often[90:]) == {10}


def test_a_balanced_batch_depends_on_the_seed_and_the_step_alone():
    assert balanced_places(SKEWED, 7, 16, seed=3) == balanced_places(SKEWED, 7, 16, seed=3)
    assert balanced_places(SKEWED, 7, 16, seed=3) != balanced_places(SKEWED, 7, 16, seed=4)
    assert balanced_places(SKEWED, 7, 16, seed=3) != balanced_places(SKEWED, 8, 16, seed=3)


@pytest.mark.usefixtures("skewed_folder")
def test_a_balanced_run_that_is_interrupted_ends_on_the_same_records_and_replays(small, tmp_path):
    config = small(balance="batches", steps=6)
    whole = train(config, tmp_path / "whole")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", stop=lambda: next(asked))
    assert resume(tmp_path / "parts").final_weights == whole.final_weights
    run, _ = tuned_run(tmp_path / "whole", "final", snapshots=False)
    assert run.weights.digest() == whole.final_weights
    train(small(steps=6), tmp_path / "as-they-come")
    other, same = (read_journal(tmp_path / name / "journal").steps for name in ("as-they-come", "parts"))
    assert same == read_journal(tmp_path / "whole" / "journal").steps != other


@pytest.mark.usefixtures("skewed_folder")
def test_the_note_about_skewed_labels_names_the_option_until_it_is_used(small, tmp_path):
    def notes(name, **options):
        told = []
        watcher = Silent()
        watcher.note = told.append
        train(small(**options), tmp_path / name, watcher=watcher)
        (note,) = [text for text in told if text.startswith("train: the labels are out of balance")]
        return note

    assert "--balance batches" in notes("without")
    assert "--balance" not in notes("with", balance="batches")


def test_balance_is_off_by_default_and_recorded_where_it_is_on(small, tmp_path, noback):
    assert "balance" not in RunConfig().recorded()
    train(small(balance="batches"), tmp_path / "run")
    code, out, _ = noback("report", tmp_path / "run", "--markdown")
    assert (code, "--balance batches" in out) == (0, True)
    with pytest.raises(InputError, match="balance is 'labels'"):
        small(balance="labels")


def test_a_task_without_labels_refuses_it(noback, tiny_causal_folder, tmp_path):
    data = write_rows(tmp_path / "data.jsonl", [{"prompt": f"say {n}", "completion": f"{n}"} for n in range(12)])
    code, out, err = noback(
        "train", "--model", tiny_causal_folder, "--task", "instructions", "--data", data, "--balance", "batches",
        "--steps", 2, "--out", tmp_path / "run",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert "has no labels to be in equal shares" in err, json.dumps(err)


@pytest.mark.usefixtures("skewed_folder")
def test_the_loss_of_a_balanced_runs_evaluation_counts_each_label_the_same(small, tmp_path, data_folder):
    shutil.copy(data_folder / "train.jsonl", data_folder / "validation.jsonl")
    for name, balance in (("as-they-come", None), ("balanced", "batches")):
        train(small(balance=balance, steps=1), tmp_path / name)
    plain, balanced = (first_evaluation(tmp_path / name) for name in ("as-they-come", "balanced"))
    weights = label_weights(golds := [0] * 36 + [1] * 4)
    assert (weights[0], weights[-1], sum(weights)) == (pytest.approx(40 / 72), 5.0, pytest.approx(40))
    assert Counter(golds[place] for place in repeated_places(golds)) == {0: 36, 1: 36}
    mean = sum(balanced["losses"]) / 40
    assert balanced["loss"] == pytest.approx(mean, abs=1e-4)  # four times nine
    assert balanced["objective"] == pytest.approx(mean, abs=1e-4)
    assert plain["loss"] == pytest.approx(sum(plain["losses"]) / 40, abs=1e-4)
    assert plain["loss"] != pytest.approx(balanced["loss"], abs=1e-4)
    assert plain["credits"] == balanced["credits"]


def first_evaluation(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["kind"] == "validation")


def test_the_halves_of_a_batch_whose_slopes_are_compared_have_the_same_shares():
    batch = balanced_places(SKEWED, 5, 16, seed=3)
    assert Counter(SKEWED[place] for place in batch[::2]) == Counter(SKEWED[place] for place in batch[1::2])

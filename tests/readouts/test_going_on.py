"""Law 4 with a readout: stopped anywhere and resumed, the run ends on the same bits and the same journal."""

import dataclasses
import json
import math

import pytest

from noback import DamagedError, ExactReadout, InputError
from noback.journal import Journal, read_journal
from noback.training import Interrupted, resume, train
from noback.tuned import tuned_run


def stopped(config, out, after):
    asked = iter([False] * after + [True])
    with pytest.raises(Interrupted):
        train(config, out, stop=lambda: next(asked))


def check_same(out, undisturbed, result):
    assert (result.final_weights, result.final_score) == (undisturbed.final_weights, undisturbed.final_score)
    assert (out / "journal").read_bytes() == (out.parent / "undisturbed" / "journal").read_bytes()


@pytest.fixture
def undisturbed(config, tmp_path):
    return train(config, tmp_path / "undisturbed")


@pytest.mark.parametrize("after", [0, 2, 3, 6])
def test_it_goes_on_after_any_step(config, undisturbed, tmp_path, after):
    stopped(config, tmp_path / "run", after)
    check_same(tmp_path / "run", undisturbed, resume(tmp_path / "run"))


def test_it_goes_on_where_a_torn_evaluation_ends_the_journal(config, undisturbed, tmp_path):
    whole = tmp_path / "whole"
    stopped(config, whole, 6)
    path, contents = whole / "journal", read_journal(whole / "journal")
    before = path.read_bytes()
    evaluation = contents.record_bytes + len(contents.evaluations[-1].readout) + 8
    for cut in (1, 8, 30, evaluation - contents.record_bytes, evaluation - 1, evaluation):
        path.write_bytes(before[: len(before) - cut])
        found = read_journal(path)
        assert (len(found.steps), len(found.evaluations)) == (6, 2)
        assert found.torn_bytes == (evaluation - cut) % evaluation
    check_same(whole, undisturbed, resume(whole))


def test_any_flipped_bit_of_the_values_is_found(undisturbed, tmp_path):
    path = tmp_path / "undisturbed" / "journal"
    contents, before = read_journal(path), path.read_bytes()
    place = before.index(contents.evaluations[1].readout)
    for offset in (0, 17, len(contents.evaluations[1].readout) + 3):
        harmed = bytearray(before)
        harmed[place + offset] ^= 4
        path.write_bytes(harmed)
        with pytest.raises(Exception, match="is damaged: its checksum does not fit"):
            read_journal(path)


def test_a_journal_whose_values_have_another_shape_than_the_model_is_refused(undisturbed, tmp_path):
    contents = read_journal(tmp_path / "undisturbed" / "journal")
    for shape in (None, {"labels": 2, "columns": 5}):
        header = {key: value for key, value in contents.header.items() if key != "readout"}
        Journal.create(tmp_path / "alone", header if shape is None else {**header, "readout": shape})
        with pytest.raises(DamagedError, match="holds a readout of another shape"):
            tuned_run(tmp_path / "alone")


def test_a_run_whose_fits_would_have_been_others_is_not_made_longer(config, tmp_path):
    train(dataclasses.replace(config, steps=6), tmp_path / "run")
    with pytest.raises(InputError, match="fitted its readout at steps 0, 3, 6, where a run of 9 steps would have at"):
        resume(tmp_path / "run", steps=9)


def test_one_that_was_fitted_once_is_made_longer(config, tmp_path):
    config = dataclasses.replace(config, readout=ExactReadout(decay=0.1, refits=0))
    longer = train(dataclasses.replace(config, steps=9), tmp_path / "longer")
    train(dataclasses.replace(config, steps=6), tmp_path / "run")
    assert resume(tmp_path / "run", steps=9).final_weights == longer.final_weights
    found, wanted = (read_journal(tmp_path / name / "journal").evaluations for name in ("run", "longer"))
    assert found == wanted


def test_the_passes_of_fits_are_counted_among_the_forwards(config, undisturbed, tmp_path):
    passes = math.ceil(8 / config.batch)
    assert undisturbed.forwards == 7 * 2 + 3 * passes
    lines = map(json.loads, (tmp_path / "undisturbed" / "metrics.jsonl").read_text().splitlines())
    counted = [(line["step"], line["forwards"]) for line in lines if line["kind"] == "validation"]
    assert counted == [(0, passes), (3, 6 + passes), (6, 12 + 2 * passes), (7, 14 + 3 * passes)]

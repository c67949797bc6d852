"""The journal: what is written is what is read, and damage is named."""

import resource

import pytest

from noback.cli.main import main
from noback.errors import DamagedError, NobackError
from noback.journal import Evaluation, Journal, StepRecord, read_journal

HEADER = {"directions": 2, "base": "b", "config": {}}
RECORDS = [StepRecord(step, 0.5, (float(step), -1.5)) for step in range(5)]


@pytest.fixture
def path(tmp_path):
    journal = Journal.create(tmp_path / "journal", HEADER)
    for record in RECORDS:
        journal.append(record)
    journal.append(Evaluation(5, 0.75, 0.25))
    return tmp_path / "journal"


def test_what_is_written_is_read_back(path):
    contents = read_journal(path)
    assert contents.header == HEADER
    assert contents.steps == RECORDS
    assert contents.evaluations == [Evaluation(5, 0.75, 0.25)]
    assert contents.torn_bytes == 0


def test_a_record_keeps_its_estimators_figures_apart_from_its_slopes(tmp_path):
    journal = Journal.create(tmp_path / "journal", {**HEADER, "figures": ["spread", "weight"]})
    records = [StepRecord(step, 0.5, (float(step), -1.5), (0.25, step + 0.5)) for step in range(3)]
    for record in records:
        journal.append(record)
    journal.append(Evaluation(3, 0.75, 0.25))
    contents = read_journal(tmp_path / "journal")
    assert (contents.steps, contents.evaluations) == (records, [Evaluation(3, 0.75, 0.25)])


def test_a_record_of_one_direction_takes_at_most_32_bytes(tmp_path):
    journal = Journal.create(tmp_path / "journal", {**HEADER, "directions": 1})
    before = (tmp_path / "journal").stat().st_size
    journal.append(StepRecord(0, 0.5, (1.0,)))
    assert (tmp_path / "journal").stat().st_size - before <= 32


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_torn_last_record_is_dropped_and_the_journal_goes_on(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_journal(path).steps == RECORDS
    assert read_journal(path).evaluations == []
    journal, contents = Journal.reopen(path)
    assert contents.torn_bytes == 24 - cut
    journal.append(Evaluation(5, 0.75, 0.25))
    assert path.read_bytes() == whole


def test_any_flipped_bit_is_found(path):
    """In the header or a record: an error that names it; in the last record: as torn, since that is how it looks."""
    whole = path.read_bytes()
    size = read_journal(path).record_bytes
    for byte in range(len(whole)):
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << (byte % 8)
        path.write_bytes(bytes(damaged))
        if byte >= len(whole) - size:
            assert read_journal(path).evaluations == []
            continue
        with pytest.raises(DamagedError, match="journal") as error:
            read_journal(path)
        first = len(whole) - 6 * size
        if byte >= first:
            assert f"record {(byte - first) // size} " in str(error.value)


def test_a_missing_record_is_named(path):
    contents = read_journal(path)
    whole, size = path.read_bytes(), contents.record_bytes
    begin = len(whole) - 6 * size
    path.write_bytes(whole[: begin + size] + whole[begin + 2 * size :])
    with pytest.raises(DamagedError, match=r"record 1 .* is step 2; expected step 1"):
        read_journal(path)


def test_another_journals_record_does_not_fit(path, tmp_path):
    other = Journal.create(tmp_path / "other", {**HEADER, "base": "c"})
    for record in RECORDS:
        other.append(record)
    whole, stranger, size = path.read_bytes(), (tmp_path / "other").read_bytes(), read_journal(path).record_bytes
    path.write_bytes(whole[: -2 * size] + stranger[-size:] + whole[-size:])
    with pytest.raises(DamagedError, match="record 4 "):
        read_journal(path)


def test_the_best_is_the_highest_score_then_the_lowest_loss_then_the_earliest(tmp_path):
    journal = Journal.create(tmp_path / "journal", HEADER)
    for step, score, loss in ((0, 0.5, 0.9), (2, 0.75, 0.5), (4, 0.75, 0.25), (6, 0.75, 0.25), (8, 0.625, 0.125)):
        journal.append(Evaluation(step, score, loss))
    best = read_journal(tmp_path / "journal").best()
    assert best is not None
    assert best.step == 4


def test_a_record_that_did_not_fit_on_the_disk_is_taken_back(path):
    """The journal stays sound for a process that makes room and goes on."""
    before, hard = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    journal, _ = Journal.reopen(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, hard))
    try:
        with pytest.raises(NobackError, match="cannot write"):
            journal.append(StepRecord(5, 0.5, (1.0, 1.0)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert path.read_bytes() == before
    journal.append(StepRecord(5, 0.5, (1.0, 1.0)))
    assert len(read_journal(path).steps) == 6


def test_figures_stand_beside_the_slopes_and_are_named(tmp_path, capsys):
    header = {**HEADER, "format": 2, "figures": ["spread", "weight"], "config": {"model": "m", "task": "t"}}
    journal = Journal.create(tmp_path / "journal", header)
    record = StepRecord(0, 0.5, (1.0, -2.0), (0.25, 3.0))
    journal.append(record)
    journal.append(Evaluation(1, 0.75, 0.25))
    again, contents = Journal.reopen(tmp_path / "journal")
    again.append(StepRecord(1, 0.5, (1.0, -2.0), (0.5, 4.0)))
    assert contents.steps == [record]
    assert read_journal(tmp_path / "journal").steps[1].figures == (0.5, 4.0)
    assert main(["journal", str(tmp_path / "journal")]) == 0
    assert "slope +1.0000 -2.0000  spread 0.25  weight 3" in capsys.readouterr().out


def test_a_journal_of_a_newer_format_is_refused_by_its_number(tmp_path):
    Journal.create(tmp_path / "journal", {**HEADER, "format": 3})
    with pytest.raises(DamagedError, match="has format 3, which a newer noback wrote"):
        read_journal(tmp_path / "journal")

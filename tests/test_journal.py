"""The journal: what is written is what is read, and damage is named."""

import hashlib
import json
import math
import resource
import struct
import zlib

import pytest

from noback.cli.main import main
from noback.errors import DamagedError, NobackError
from noback.journal import EpsChange, Evaluation, Journal, Seal, StepRecord, read_header, read_journal

HEADER = {"directions": 2, "base": "b", "config": {}, "format": 3}
SIZE = 28  # bytes of a record of two directions
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


def test_a_header_is_sorted_but_for_the_order_of_label_words(tmp_path):
    task = {"words": {"pos": "great", "neg": "bad"}, "name": "own"}
    Journal.create(tmp_path / "own", {**HEADER, "task": task, "config": {"b": 1, "a": 2}})
    header = read_header(tmp_path / "own")
    assert (list(header), list(header["config"])) == (sorted(header), ["a", "b"])
    assert (list(header["task"]), list(header["task"]["words"])) == (["name", "words"], ["pos", "neg"])
    plain = {**HEADER, "task": {**task, "words": {"0": "bad", "1": "great"}}}
    Journal.create(tmp_path / "plain", plain)
    assert json.dumps(plain, sort_keys=True).encode() in (tmp_path / "plain").read_bytes()


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


@pytest.mark.parametrize("cut", range(1, SIZE))
def test_a_torn_last_record_is_dropped_and_the_journal_goes_on(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_journal(path).steps == RECORDS
    assert read_journal(path).evaluations == []
    journal, contents = Journal.reopen(path)
    assert contents.torn_bytes == SIZE - cut
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
    with pytest.raises(DamagedError, match=r"record 1 .* the records before it are not those it was written after"):
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
    for step, score, loss in ((0, 0.5, 0.9), (1, 0.75, 0.5), (2, 0.75, 0.25), (3, 0.75, 0.25), (4, 0.625, 0.125)):
        journal.append(Evaluation(step, score, loss))
        journal.append(StepRecord(step, 0.5, (1.0, 1.0)))
    best = read_journal(tmp_path / "journal").best()
    assert best is not None
    assert best.step == 2


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
    header = {**HEADER, "figures": ["spread", "weight"], "config": {"model": "m", "task": "t"}}
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


# Formats


@pytest.mark.parametrize("number", [2, 5, 17])
def test_a_journal_of_another_format_is_refused_by_its_number(path, number):
    path.write_bytes(path.read_bytes().replace(b"noback journal 3", b"noback journal %d" % number, 1))
    with pytest.raises(DamagedError, match=r"has format|no noback journal"):
        read_journal(path)


def test_a_plain_journal_of_a_newer_format_is_refused_by_its_number(tmp_path):
    plain_journal(tmp_path / "journal", {**HEADER, "format": 7}, [])
    with pytest.raises(DamagedError, match="has format 7, which a newer noback wrote; this one reads 1 to 4"):
        read_journal(tmp_path / "journal")


@pytest.mark.parametrize("number", [1, 2])
def test_a_journal_of_an_older_format_opens_goes_on_in_it_and_names_its_guarantees(tmp_path, number):
    path = tmp_path / "journal"
    plain_journal(path, {**HEADER, "format": number, "config": {"steps": 9}}, [(1, 0, 0.5, 1.0, 2.0)])
    before = path.read_bytes()
    journal, contents = Journal.reopen(path)
    assert contents.steps == [StepRecord(0, 0.5, (1.0, 2.0))]
    assert "format" in contents.warning()
    assert "guarded one by one" in contents.warning()
    contents.add(Evaluation(1, 0.5, 0.25), journal.append(Evaluation(1, 0.5, 0.25)))
    again = read_journal(path)
    assert path.read_bytes()[: len(before)] == before
    assert (again.evaluations, again.digests) == (contents.evaluations, contents.digests)
    assert len(path.read_bytes()) - len(before) == 24


def plain_journal(path, header, records):
    """A journal as formats 1 and 2 have it: each record guarded by itself."""
    text = json.dumps(header, sort_keys=True).encode()
    body = b"noback journal 1\n" + struct.pack("<I", len(text)) + text
    crc = zlib.crc32(body)
    data = body + struct.pack("<I", crc)
    for record in records:
        packed = struct.pack("<IIf2f", *record)
        data += packed + struct.pack("<I", zlib.crc32(packed, crc))
    path.write_bytes(data)


# The chain


def records_of(path):
    """The header's bytes and each record's."""
    whole, size = path.read_bytes(), read_journal(path).record_bytes
    begin = 17 + 4 + struct.unpack("<I", whole[17:21])[0] + 8
    return whole[:begin], [whole[place : place + size] for place in range(begin, len(whole), size)]


@pytest.fixture
def sealed(tmp_path):
    """Three steps, evaluations before the first, after the second and after the last, a change of eps, and a seal."""
    path = tmp_path / "journal"
    journal = Journal.create(path, {**HEADER, "config": {"steps": 3}})
    one, two, three = (StepRecord(step, 0.5, (float(step), 1.0)) for step in range(3))
    for record in (Evaluation(0, 0.5, 0.7), one, two, Evaluation(2, 0.75, 0.5), EpsChange(2, 0.01), three, Seal(3)):
        journal.append(record)
    return path


def test_a_sealed_journal_is_whole_and_one_cut_short_says_so(sealed):
    contents = read_journal(sealed)
    assert contents.sealed
    assert contents.warning() is None
    header, records = records_of(sealed)
    for left in range(7):
        sealed.write_bytes(header + b"".join(records[:left]))
        contents = read_journal(sealed)
        assert not contents.sealed
        assert f"the journal holds {len(contents.steps)} of 3 steps and no seal" in contents.warning()


@pytest.mark.parametrize("place", range(7))
def test_a_record_that_is_removed_is_found(sealed, place):
    header, records = records_of(sealed)
    del records[place]
    sealed.write_bytes(header + b"".join(records))
    if place == 6:  # the seal: a true prefix
        assert not read_journal(sealed).sealed
    elif place == 5:  # the seal is now a last record that does not fit, as a torn one looks
        contents = read_journal(sealed)
        assert (len(contents.steps), contents.sealed) == (2, False)
    else:
        with pytest.raises(DamagedError, match=f"record {place} "):
            read_journal(sealed)


@pytest.mark.parametrize("place", range(7))
def test_a_record_that_is_doubled_is_found(sealed, place):
    header, records = records_of(sealed)
    records.insert(place, records[place])
    sealed.write_bytes(header + b"".join(records))
    with pytest.raises(DamagedError, match=rf"record {place + 1} |after its seal"):
        read_journal(sealed)


@pytest.mark.parametrize(("one", "other"), [(0, 3), (3, 4), (0, 1), (1, 2), (2, 5)])
def test_records_that_change_places_are_found(sealed, one, other):
    header, records = records_of(sealed)
    records[one], records[other] = records[other], records[one]
    sealed.write_bytes(header + b"".join(records))
    with pytest.raises(DamagedError, match=f"record {one} "):
        read_journal(sealed)


@pytest.mark.parametrize("more", [b"x", b"x" * SIZE, b"x" * (SIZE + 3)])
def test_bytes_after_a_seal_are_refused(sealed, more):
    sealed.write_bytes(sealed.read_bytes() + more)
    with pytest.raises(DamagedError, match=r"seal|record 7"):
        read_journal(sealed)


def test_a_record_says_how_all_before_it_went(tmp_path):
    """Two journals that differ in their first slope alone differ in the check of every record after it."""
    for name, first in (("a", 1.0), ("b", 1.5)):
        journal = Journal.create(tmp_path / name, HEADER)
        for step in range(4):
            journal.append(StepRecord(step, 0.5, (first if step == 0 else 2.0, 1.0)))
    (_, one), (_, other) = records_of(tmp_path / "a"), records_of(tmp_path / "b")
    assert all(a[:-8] == b[:-8] and a[-8:] != b[-8:] for a, b in zip(one[1:], other[1:], strict=True))


def test_the_digests_of_what_was_written_are_those_of_what_is_read(sealed, tmp_path):
    contents = read_journal(sealed)
    journal = Journal.create(tmp_path / "again", {**HEADER, "config": {"steps": 3}})
    digests = [journal.append(record) for record in (Evaluation(0, 0.5, 0.7), *contents.steps[:2])]
    assert contents.digests[1:3] == digests[1:]
    assert len(contents.digests) == 4
    assert len(set(contents.digests)) == 4


# What cannot be in a journal, though its checksums fit


@pytest.mark.parametrize(
    "records",
    [
        [StepRecord(1, 0.5, (1.0, 1.0))],
        [Evaluation(4_000_000_000, 0.5, 0.5)],
        [Evaluation(0, 0.5, 0.5), Evaluation(0, 0.6, 0.4)],
        [EpsChange(2, 0.1)],
        [EpsChange(0, 0.1), EpsChange(0, 0.2)],
        [EpsChange(0, -0.1)],
        [Seal(0)],
        [StepRecord(0, 0.5, (1.0, 1.0)), Seal(1)],
        [StepRecord(step, 0.5, (1.0, 1.0)) for step in range(3)],
        [*(StepRecord(step, 0.5, (1.0, 1.0)) for step in range(2)), Seal(2), Evaluation(2, 0.5, 0.5)],
        [StepRecord(0, 0.5, (math.nan, 1.0))],
        [StepRecord(0, math.inf, (1.0, 1.0))],
        [StepRecord(0, 0.5, (1.0, -math.inf))],
        [Evaluation(0, math.nan, 0.5)],
        [Evaluation(0, 0.5, math.inf)],
    ],
)
def test_a_record_that_no_run_of_two_steps_could_have_written_is_refused(tmp_path, records):
    journal = Journal.create(tmp_path / "journal", {**HEADER, "config": {"steps": 2}})
    for record in records:
        journal.append(record)
    with pytest.raises(DamagedError, match=f"record {len(records) - 1} "):
        read_journal(tmp_path / "journal")


@pytest.mark.parametrize(
    "changed",
    [
        {"directions": 0},
        {"directions": 2**40},
        {"directions": "2"},
        {"directions": True},
        {"figures": "ab"},
        {"figures": [1]},
        {"figures": ["a"] * 1000},
        {"config": []},
        {"config": {"steps": 2**70}},
        {"config": {"steps": "many"}},
        {"task": "sst2"},
        {"base": 5},
        {"start_tensors": [1]},
        {"versions": None},
        {"readout": 5},
        {"readout": {}},
        {"readout": {"labels": 0, "columns": 3}},
        {"readout": {"labels": 2, "columns": True}},
        {"readout": {"labels": 2**20, "columns": 2**20}},
    ],
)
def test_a_header_of_another_form_is_refused_by_its_key(tmp_path, changed):
    Journal.create(tmp_path / "journal", HEADER)
    assert read_header(tmp_path / "journal") == HEADER
    text = json.dumps({**HEADER, **changed}).encode()
    (tmp_path / "journal").write_bytes(with_header(text))
    with pytest.raises(DamagedError, match=next(iter(changed))):
        read_journal(tmp_path / "journal")


@pytest.mark.parametrize(
    "text", [b"[1]", b"{", b"[" * 100_000, b'{"directions": ' + b"9" * 5000 + b"}", b"\xff", b"{}"]
)
def test_a_header_that_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "journal").write_bytes(with_header(text))
    with pytest.raises(DamagedError, match="header"):
        read_journal(tmp_path / "journal")


def with_header(text):
    body = b"noback journal 3\n" + struct.pack("<I", len(text)) + text
    return body + hashlib.blake2b(body, digest_size=16).digest()[:8]


def test_a_header_that_claims_more_bytes_than_there_are_is_refused(tmp_path):
    (tmp_path / "journal").write_bytes(b"noback journal 3\n" + struct.pack("<I", 2**32 - 1) + b"{}")
    with pytest.raises(DamagedError, match="header"):
        read_journal(tmp_path / "journal")


def test_a_huge_file_of_nothing_is_left_at_its_first_record(path):
    """A sparse file costs its sender nothing."""
    with open(path, "r+b") as file:
        file.truncate(2**40)
    with pytest.raises(DamagedError, match="record 6 "):
        read_journal(path)

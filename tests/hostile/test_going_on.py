"""Points 4 and 9: a run goes on from what is its own, and says what it can promise."""

import shutil

import pytest

from noback.journal import read_journal
from tests.hostile.conftest import trained
from tests.hostile.forging import forge


@pytest.fixture
def stranger(run, tmp_path):
    """A run of another seed."""
    return trained(read_journal(run / "journal").header["config"]["model"], tmp_path / "stranger", seed=5)


def test_a_run_beside_another_runs_snapshots_ends_on_its_own_bits(unfinished, master, stranger, noback):
    (unfinished / "snapshots").mkdir()
    for snapshot in (stranger / "snapshots").iterdir():  # of the last step, and one that looks as if it were in between
        shutil.copy(snapshot, unfinished / "snapshots" / "step-0000002.safetensors")
        shutil.copy(snapshot, unfinished / "snapshots" / "step-0000004.safetensors")
    code, _, err = noback("resume", unfinished)
    assert code == 0, err
    assert "is passed over: it is of another run" in err
    assert (unfinished / "journal").read_bytes() == (master / "journal").read_bytes()


@pytest.mark.parametrize("threads", [None, 7])
def test_a_resume_under_another_number_of_threads_says_what_it_can_promise(unfinished, noback, threads):
    def change(header):
        header["threads"] = threads or header["threads"]

    forge(unfinished, header=change)
    code, _, err = noback("resume", unfinished)
    assert code == 0, err
    assert ("began with 7 threads and goes on with 1" in " ".join(err.split())) == (threads == 7)
    assert ("replays to its bits on any number" in " ".join(err.split())) == (threads == 7)

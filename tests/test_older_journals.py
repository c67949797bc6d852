"""What noback 0.1.0 wrote: its run folders open, its journals replay to their bits, and a run goes on."""

import json
import shutil
from pathlib import Path

import pytest

from noback import AdaptTies, LocalEngine, Normal, Rademacher, resume
from noback.journal import read_journal
from noback.tuned import tuned_run
from tests.hostile.forging import records_in_order

FOLDER = Path(__file__).parent / "data" / "journals-0.1.0"
DIGESTS = json.loads((FOLDER / "digests.json").read_text())


@pytest.mark.parametrize("name", DIGESTS)
def test_a_run_folder_replays_to_its_bits(name):
    run, step = tuned_run(FOLDER / name, "final", snapshots=False)
    assert step == 8
    assert run.weights.digest() == DIGESTS[name] != run.start


@pytest.mark.parametrize("name", DIGESTS)
def test_a_journal_by_itself_replays_to_its_bits(name, tmp_path):
    shutil.copy(FOLDER / name / "journal", tmp_path / "journal")
    assert tuned_run(tmp_path / "journal", "final", snapshots=False)[0].weights.digest() == DIGESTS[name]


def test_options_are_where_they_stand_now():
    config = tuned_run(FOLDER / "full", "base")[0].config
    assert config.engine == LocalEngine(matmul_precision="tf32", probes_per_pass=1)
    assert (config.noise, config.adapt_ties) == (Normal(), AdaptTies(window=2, largest=0.05))
    assert tuned_run(FOLDER / "lora", "base")[0].config.noise == Rademacher()


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("left", [0, 3])
def test_a_run_goes_on(name, left, tmp_path):
    """The records after `left` steps are cut off, as if the process had died there; other CPUs round otherwise."""
    shutil.copytree(FOLDER / name, tmp_path / "run")
    journal = tmp_path / "run" / "journal"
    size = read_journal(journal).record_bytes
    while len(read_journal(journal).steps) > left:
        journal.write_bytes(journal.read_bytes()[:-size])
    kept = read_journal(journal).steps
    result = resume(tmp_path / "run")
    after = read_journal(journal)
    assert (after.header["format"], len(after.steps), after.steps[: len(kept)]) == (1, 8, kept)
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights


def test_a_run_that_had_only_begun_goes_on_in_its_own_format(tmp_path):
    """Not one record is there: the first evaluation is written as 0.1.0 would read it."""
    shutil.copytree(FOLDER / "lora", tmp_path / "run")
    journal = tmp_path / "run" / "journal"
    contents = read_journal(journal)
    begin = contents.sound_bytes - contents.record_bytes * len(records_in_order(contents))
    journal.write_bytes(journal.read_bytes()[:begin])
    resume(tmp_path / "run")
    after = read_journal(journal)
    assert (after.header["format"], len(after.steps)) == (1, 8)
    assert not any(one.chosen for one in after.evaluations)
    assert after.best() == max(after.evaluations, key=lambda one: (one.score, -one.loss, -one.step))

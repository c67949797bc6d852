"""Snapshots: only a sound one of this run, this step and this journal is used."""

import hashlib

import pytest
import torch

from noback.errors import DamagedError
from noback.snapshot import newest_snapshot, prune_snapshots, save_snapshot
from noback.weights import Weights

DIGESTS = [hashlib.blake2b(bytes([step]), digest_size=16).digest() for step in range(10)]
OTHER = [hashlib.blake2b(bytes([step, 1]), digest_size=16).digest() for step in range(10)]


def weights(value=0.0):
    return Weights({"a": torch.full((3, 2), value), "b": torch.full((4,), value, dtype=torch.bfloat16)})


@pytest.fixture
def newest(tmp_path):
    """The newest snapshot up to a step, and what was said."""

    def find(at_most=9, digests=DIGESTS, like=None):
        said = []
        found = newest_snapshot(tmp_path, at_most, digests, like or weights().tensors, said.append)
        return found, said

    return find


def save(folder, *steps, digests=DIGESTS):
    for step in steps:
        save_snapshot(folder, step, weights(float(step)), digests)


def test_the_newest_snapshot_up_to_a_step_is_read_back(tmp_path, newest):
    save(tmp_path, 2, 4, 6)
    (step, tensors), said = newest(5)
    assert (step, said) == (4, [])
    assert torch.equal(tensors["a"], torch.full((3, 2), 4.0))
    assert tensors["b"].dtype == torch.bfloat16


def test_a_damaged_snapshot_is_passed_over(tmp_path, newest):
    save(tmp_path, 2, 4)
    path = tmp_path / "step-0000004.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(bytes(damaged))
    assert newest()[0][0] == 2
    assert "step-0000004.safetensors is passed over: its tensors are damaged" in newest()[1][0]
    path.write_bytes(bytes(damaged)[:40])
    assert newest()[0][0] == 2


@pytest.mark.parametrize(
    ("digests", "why"),
    [
        (OTHER, "of another run"),
        ([DIGESTS[0], *OTHER[1:]], "the journal's records up to its step are not those"),
    ],
)
def test_a_snapshot_of_another_run_or_journal_is_passed_over(tmp_path, newest, digests, why):
    save(tmp_path, 2)
    save(tmp_path, 4, digests=digests)
    (step, _), said = newest()
    assert step == 2
    assert why in said[0]


def test_a_renamed_snapshot_is_passed_over(tmp_path, newest):
    save(tmp_path, 2, 4)
    (tmp_path / "step-0000004.safetensors").rename(tmp_path / "step-0000006.safetensors")
    (step, _), said = newest()
    assert step == 2
    assert "it is of step 4" in said[0]


def test_a_snapshot_without_marks_is_passed_over(tmp_path, newest):
    """As noback 0.1.0 wrote them."""
    from safetensors.torch import save_file

    mine = weights(4.0)
    path = tmp_path / "step-0000004.safetensors"
    save_file(mine.tensors, path, metadata={"step": "4", "digest": mine.digest()})
    assert newest()[0] is None
    assert "did not mark" in newest()[1][0]


@pytest.mark.parametrize(
    "like",
    [
        {"a": torch.zeros(3, 1), "b": torch.zeros(4, dtype=torch.bfloat16)},  # a broadcast would fit
        {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)},
        {"a": torch.zeros(3, 2), "b": torch.zeros(4)},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(3, 2), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.zeros(1)},
    ],
)
def test_a_snapshot_of_other_shapes_types_or_names_is_passed_over(tmp_path, newest, like):
    save(tmp_path, 4)
    found, said = newest(like=like)
    assert found is None
    assert "its tensors" in said[0]


@pytest.mark.parametrize("name", ["step-0000030 (1).safetensors", "step-x.safetensors", "step-٣٣٣٣٣٣٣.safetensors"])
def test_a_file_of_another_name_is_left_alone(tmp_path, newest, name):
    save(tmp_path, 4)
    (tmp_path / name).write_bytes(b"a copy that a file manager made")
    assert newest()[0][0] == 4
    prune_snapshots(tmp_path, 4)
    assert (tmp_path / name).exists()


def test_a_folder_of_snapshots_that_is_a_link_is_refused(tmp_path):
    """Pruning would delete files elsewhere."""
    save(tmp_path, 4)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for use in (
        lambda: prune_snapshots(link, 9),
        lambda: save_snapshot(link, 6, weights(), DIGESTS),
        lambda: newest_snapshot(link, 9, DIGESTS, weights().tensors, print),
    ):
        with pytest.raises(DamagedError, match="is a link"):
            use()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "step-0000004.safetensors"]


def test_a_snapshot_is_not_written_through_a_link_in_its_temporary_place(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    folder = tmp_path / "snapshots"
    folder.mkdir()
    (folder / "step-0000004.new").symlink_to(outside)
    save(folder, 4)
    assert outside.read_bytes() == b"precious"


def test_pruning_keeps_what_is_asked_and_clears_what_is_half_written(tmp_path):
    save(tmp_path, 2, 4, 6)
    (tmp_path / "step-0000008.new").write_bytes(b"half")
    prune_snapshots(tmp_path, 6, 3)  # of step 3 the nearest before it, from which the journal goes on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000002.safetensors", "step-0000006.safetensors"]


def test_no_snapshot_is_no_snapshot(newest):
    assert newest() == (None, [])

"""Snapshots: only a sound one is used."""

import torch

from noback.snapshot import newest_snapshot, prune_snapshots, save_snapshot
from noback.weights import Weights


def weights(value):
    return Weights({"a": torch.full((3, 2), value), "b": torch.full((4,), value, dtype=torch.bfloat16)})


def test_the_newest_snapshot_up_to_a_step_is_read_back(tmp_path):
    for step in (2, 4, 6):
        save_snapshot(tmp_path, step, weights(float(step)))
    step, tensors = newest_snapshot(tmp_path, 5)
    assert step == 4
    assert torch.equal(tensors["a"], torch.full((3, 2), 4.0))
    assert tensors["b"].dtype == torch.bfloat16


def test_a_damaged_snapshot_is_passed_over(tmp_path):
    for step in (2, 4):
        save_snapshot(tmp_path, step, weights(float(step)))
    path = tmp_path / "step-0000004.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(bytes(damaged))
    assert newest_snapshot(tmp_path, 9)[0] == 2
    path.write_bytes(bytes(damaged)[:40])
    assert newest_snapshot(tmp_path, 9)[0] == 2


def test_pruning_keeps_what_is_asked_and_clears_what_is_half_written(tmp_path):
    for step in (2, 4, 6):
        save_snapshot(tmp_path, step, weights(float(step)))
    (tmp_path / "step-0000008.new").write_bytes(b"half")
    prune_snapshots(tmp_path, 6, 3)  # of step 3 the nearest before it, from which the journal goes on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000002.safetensors", "step-0000006.safetensors"]


def test_no_snapshot_is_no_snapshot(tmp_path):
    assert newest_snapshot(tmp_path / "nowhere", 9) is None

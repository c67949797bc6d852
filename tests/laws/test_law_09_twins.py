"""Law 9: every fast path equals its slow readable twin. (Noise: law 1. Probes, prefixes: tests/engines.)"""

import pytest
import torch

import noback.weights
from noback.directions import cpu_backend, philox
from noback.engines import Local, Reference
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import tiny_model, weights_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_moves_in_one_pass_equal_one_pass_a_move(dtype):
    moves = [Move((Term(seed, 1e-2), Term(seed + 99, -1e-3)), decay=1 - 1e-3) for seed in range(20)]
    at_once, one_by_one = weights_of(tiny_model("roberta", dtype=dtype)), weights_of(tiny_model("roberta", dtype=dtype))
    at_once.advance(moves)
    for move in moves:
        one_by_one.advance([move])
    assert at_once.digest() == one_by_one.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_numba_the_twin_gives_the_same_bits(monkeypatch, dtype):
    moves = [Move((Term(1, 1e-2),)), Move((Term(2, -1e-2),), decay=0.9)]
    fast = weights_of(tiny_model("bert", vocab=50, dtype=dtype))
    before = {name: fast.perturbed(name, moves) for name in fast.names}
    fast.advance(moves)
    monkeypatch.setattr(cpu_backend, "sweeps", philox)
    slow = weights_of(tiny_model("bert", vocab=50, dtype=dtype))
    for name in slow.names:
        assert torch.equal(slow.perturbed(name, moves), before[name])
    slow.advance(moves)
    assert slow.digest() == fast.digest()


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_perturbed_together_have_the_bits_of_each_by_itself(monkeypatch, dtype, numba):
    points = [Move((Term(1, 1e-2),)), Move((Term(1, -1e-2),)), Move((Term(2, 0.5), Term(1, 1e-3)))]
    weights = weights_of(tiny_model("bert", vocab=50, dtype=dtype))
    expected = {name: weights.perturbed(name, points) for name in weights.names}
    if not numba:
        monkeypatch.setattr(cpu_backend, "sweeps", philox)
    largest = max(tensor.nbytes for tensor in weights.tensors.values())
    monkeypatch.setattr(noback.weights, "_GROUPED", 2 * len(points) * (largest - 1))
    groups = weights.groups(list(weights.names), len(points))
    assert len(set(groups.values())) > 1
    assert set(groups) < set(weights.names)  # the largest tensor is too large for a group
    for group in set(groups.values()):
        for name, found in weights.perturbed_together(group, points).items():
            assert torch.equal(found, expected[name])


def test_the_readout_at_the_mask_equals_the_full_forward(small_task):
    model = tiny_model("bert")
    weights, batch = weights_of(model), small_task.batch(0, 8, 0)
    (ours,) = Local(model, weights, small_task.word_ids).score(batch, [UNPERTURBED])
    (twins,) = Reference(model, weights, small_task.word_ids).score(batch, [UNPERTURBED])
    torch.testing.assert_close(ours, twins, atol=1e-6, rtol=1e-5)

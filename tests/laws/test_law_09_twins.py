"""Law 9: every fast path equals its slow readable twin. (Noise: law 1. Probes, prefixes: tests/engines.)"""

import pytest
import torch

from noback.directions import sweeps
from noback.engines import STILL, Local, Plain
from noback.values import Move, Term
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
    monkeypatch.setattr(sweeps, "_numba", None)
    slow = weights_of(tiny_model("bert", vocab=50, dtype=dtype))
    for name in slow.names:
        assert torch.equal(slow.perturbed(name, moves), before[name])
    slow.advance(moves)
    assert slow.digest() == fast.digest()


def test_the_readout_at_the_mask_equals_the_full_forward(small_task):
    model = tiny_model("bert")
    weights, batch = weights_of(model), small_task.batch(0, 8, 0)
    (ours,) = Local(model, weights, small_task.word_ids).score(batch, [STILL])
    (twins,) = Plain(model, weights, small_task.word_ids).score(batch, [STILL])
    torch.testing.assert_close(ours, twins, atol=1e-6, rtol=1e-5)

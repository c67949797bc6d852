"""The local engine against its slow twin, on every architecture of the BERT kind."""

import pytest
import torch

from noback.engines import STILL, Local, Plain
from noback.values import Move, Term
from tests.conftest import tiny_model, weights_of

KINDS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
POINTS = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), Move((Term(4, 1e-2), Term(3, 5e-3))), STILL]


def batch_of(task, size=5):
    return task.batch(0, size, 0)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_probes_in_one_forward_equal_whole_perturbed_copies(kind, tied, small_task):
    model = tiny_model(kind, tied=tied)
    weights = weights_of(model)
    batch = batch_of(small_task)
    fast = Local(model, weights, small_task.word_ids).score(batch, POINTS)
    slow = Plain(model, weights, small_task.word_ids).score(batch, POINTS)
    assert (slow[0] - slow[1]).abs().max() > 1e-3  # the points are apart, so agreement means something
    for ours, twins in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)

"""Law 7: every engine gives the reference engine's scores on a tiny model within a stated tolerance."""

import pytest
import torch

from noback.engines import Reference
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import tiny_causal, tiny_model, weights_of
from tests.contracts.tables import ENGINES, NOISES

TOLERANCE = 2e-5  # float32, sums in another order
POINTS = [UNPERTURBED, Move((Term(3, 0.05),)), Move((Term(3, -0.05),)), Move((Term(4, 0.05), Term(5, -0.02)))]


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["roberta", "bert", "opt", "llama"])
def test_every_engine_scores_as_the_reference_does(small_task, engine, kind, noise):
    model = tiny_causal(kind) if kind in ("opt", "llama") else tiny_model(kind)
    weights, batch = weights_of(model, noise), small_task.batch(0, 5, 0)
    expected = Reference(model, weights, small_task.word_ids).score(batch, POINTS)
    scores = ENGINES[engine](model, weights, small_task.word_ids).score(batch, POINTS)
    for found, reference in zip(scores, expected, strict=True):
        torch.testing.assert_close(found, reference, atol=TOLERANCE, rtol=TOLERANCE)
    assert (expected[1] - expected[2]).abs().max() > 100 * TOLERANCE  # the points are apart

"""Law 5: micro-batching and probes per pass do not change which move is applied beyond the rounding of a loss."""

import pytest
import torch

from noback.engines import Local
from noback.estimators import estimate
from noback.objectives import cross_entropy
from noback.values import direction_seeds
from tests.conftest import tiny_model, weights_of
from tests.contracts.tables import ESTIMATORS

# The stated rounding of a loss: what float32 sums in another order may differ by, relative to a loss near 1.
LOSS_ROUNDING = 2e-6


@pytest.mark.parametrize("noise", ["normal", "rank1"])
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("micro_batch", [None, 1, 3])
@pytest.mark.parametrize("probes_per_pass", [None, 1, 2, 4])
def test_the_move_is_the_same_however_the_work_is_cut(small_task, probes_per_pass, micro_batch, name, noise):
    model = tiny_model("roberta")
    weights = weights_of(model, noise)
    batch = small_task.batch(0, 7, 0)
    estimator = ESTIMATORS[name].estimator
    seeds = direction_seeds(0, 0, estimator.directions)

    def measured(**cuts):
        engine, losses = Local(model, weights, small_task.word_ids, **cuts), []

        def score(points):
            losses.extend(cross_entropy(output, batch.gold) for output in engine.score(batch, points))
            return losses

        return estimate(estimator, seeds, score), losses

    (one, whole), (other, cut) = measured(), measured(probes_per_pass=probes_per_pass, micro_batch=micro_batch)
    torch.testing.assert_close(torch.tensor(cut), torch.tensor(whole), atol=LOSS_ROUNDING, rtol=0)
    unit = estimator.unit(one.figures)
    for found, expected in zip(other.slopes, one.slopes, strict=True):
        # Two losses over 2 eps; where a slope is divided by figures, two over eps, and the figures' own rounding.
        share = 2 + abs(expected) if estimator.figures else 1
        assert abs(found - expected) * unit <= share * LOSS_ROUNDING / estimator.eps

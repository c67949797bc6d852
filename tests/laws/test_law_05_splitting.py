"""Law 5: micro-batching and probes per pass do not change which move is applied beyond the rounding of a loss."""

import pytest
import torch

from noback.engines import Local
from noback.estimators import TwoSided
from noback.objectives import cross_entropy
from noback.values import direction_seeds
from tests.conftest import tiny_model, weights_of

# The stated rounding of a loss: what float32 sums in another order may differ by, relative to a loss near 1.
LOSS_ROUNDING = 2e-6


@pytest.mark.parametrize("micro_batch", [None, 1, 3])
@pytest.mark.parametrize("probes_per_pass", [None, 1, 2, 4])
def test_the_move_is_the_same_however_the_work_is_cut(small_task, probes_per_pass, micro_batch):
    model = tiny_model("roberta")
    weights = weights_of(model)
    batch = small_task.batch(0, 7, 0)
    estimator = TwoSided(eps=1e-2, directions=3)
    seeds = direction_seeds(0, 0, 3)

    def losses(**cuts):
        engine = Local(model, weights, small_task.word_ids, **cuts)
        return [cross_entropy(output, batch.gold) for output in engine.score(batch, estimator.points(seeds))]

    whole, cut = losses(), losses(probes_per_pass=probes_per_pass, micro_batch=micro_batch)
    torch.testing.assert_close(torch.tensor(cut), torch.tensor(whole), atol=LOSS_ROUNDING, rtol=0)
    slopes = zip(estimator.estimate(seeds, cut).slopes, estimator.estimate(seeds, whole).slopes, strict=True)
    assert all(abs(one - other) <= LOSS_ROUNDING / estimator.eps for one, other in slopes)

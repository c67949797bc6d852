"""Law 8: one step equals the published algorithm's step given the same noise."""

import copy

import pytest
import torch

from noback.engines import Local
from noback.estimators import TwoSided, estimate
from noback.objectives import cross_entropy
from noback.rules import Sgd, move_of
from noback.values import Move, Term, direction_seeds
from noback.weights import Weights, is_decayed
from tests.conftest import tiny_model, weights_of


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_equals_the_published_walk_with_the_same_noise(small_task, weight_decay):
    eps, lr = 1e-2, 1e-1
    model = tiny_model("roberta").double().float()
    walked = copy.deepcopy(model)
    batch = small_task.batch(0, 6, 0)
    (seed,) = direction_seeds(0, 0, 1)

    # The published order of work: +eps, loss, -2 eps, loss, +eps, update; a full forward with the loss at the mask.
    def walk(coefficient):
        for name, tensor in walked.named_parameters():
            tensor.data += coefficient * noise(name, tensor)

    def noise(name, tensor):
        return Weights({name: torch.zeros_like(tensor.data)}).perturbed(name, [Move((Term(seed, 1.0),))])[0]

    def loss():
        with torch.inference_mode():
            logits = walked(**batch.inputs).logits[torch.arange(len(batch)), batch.mask_positions]
        return torch.nn.functional.cross_entropy(logits[:, small_task.word_ids], batch.gold).item()

    walk(eps)
    plus = loss()
    walk(-2 * eps)
    minus = loss()
    walk(eps)
    slope = (plus - minus) / (2 * eps)
    for name, tensor in walked.named_parameters():
        decay = weight_decay if is_decayed(name) else 0.0
        tensor.data -= lr * (slope * noise(name, tensor) + decay * tensor.data)

    weights = weights_of(model)
    engine = Local(model, weights, small_task.word_ids)

    def score(points):
        return [cross_entropy(output, batch.gold) for output in engine.score(batch, points)]

    found = estimate(TwoSided(eps), [seed], score)
    weights.advance([move_of(Sgd(lr, weight_decay), 0, 1, [found])])

    assert abs(slope) > 1e-3
    assert found.slopes[0] == pytest.approx(slope, rel=1e-3)
    for (name, ours), (_, theirs) in zip(model.named_parameters(), walked.named_parameters(), strict=True):
        torch.testing.assert_close(ours.data, theirs.data, atol=2e-6, rtol=1e-4, msg=name)

"""Law 8: one step equals the published algorithm's step given the same noise."""

import copy
import math

import numpy as np
import pytest
import torch

from noback import MeZO, Momentum
from noback.directions import KeptColumns, Place, philox, seeds_of, tensor_id
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


@pytest.mark.parametrize("beta", [0.0, 0.6])
def test_steps_of_kept_columns_equal_those_published_as_lozo(beta):
    """X <- X - lr M V^T / r, where M is c U, or its moving mean in the space of the rows (LOZO-M), while V stays."""
    rank, period, lr, eps = 2, 4, 0.05, 1e-2
    noise, start = KeptColumns(rank, period), torch.linspace(-1, 1, 48).reshape(8, 6)
    target = start.flip(0)
    model = torch.nn.ParameterDict({"x": torch.nn.Parameter(start.clone())})
    optimizer = MeZO(
        model, eps=eps * math.sqrt(rank), noise=noise, rule=Momentum(lr, beta=beta) if beta else Sgd(lr)
    )  # its directions are U V^T over the root of r, so that an element has unit variance

    def loss(x):
        return ((x.double() - target) ** 2).sum()

    def signs(seed, lines, stream):
        return torch.from_numpy(philox.signs(seed, Place(tensor_id("x"), 6), np.arange(lines), rank, stream)).double()

    walked, kept, seen = start.double(), torch.zeros(8, rank, dtype=torch.float64), set()
    for step in range(period):
        (seed,) = seeds_of(noise, 0, step, 1)
        u, v = signs(seed, 8, philox.ROW_STREAM), signs(seed >> 32 << 32, 6, philox.COLUMN_STREAM)
        seen.add(v.numpy().tobytes())
        plus, minus = (loss(walked + side * eps * u @ v.T) for side in (1, -1))
        kept = beta * kept + (1 - beta) * (plus - minus) / (2 * eps) * u
        walked = walked - lr * kept @ v.T / rank
        optimizer.step(lambda: loss(model["x"]))
        torch.testing.assert_close(model["x"].double(), walked, atol=1e-4, rtol=1e-4)
    assert len(seen) == 1
    assert (walked - start).norm() > 0.1

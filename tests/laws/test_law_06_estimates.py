"""Law 6: estimators are unbiased on a quadratic and descend it; the direction measured is the direction applied."""

import dataclasses

import numpy as np
import pytest
import torch

from noback import MeZO, RunConfig, Sgd, TwoSided
from noback.directions import FAMILIES, Place, philox, seeds_of
from noback.estimators import estimate
from noback.journal import StepRecord
from noback.measuring import measure
from noback.measuring_eps import _along
from noback.replaying import move_at, recorded_move
from noback.run import Run, drawn_data
from noback.values import Move, Term, direction_seeds
from noback.weights import Weights
from tests.conftest import tiny_model, weights_of
from tests.contracts.tables import ESTIMATORS, LR_FACTORS, NOISES, RULES

SIZE = 24
CURVES = np.linspace(0.5, 2.0, SIZE)


def quadratic(point: np.ndarray) -> float:
    return float((CURVES * point.astype(np.float64).reshape(-1) ** 2).sum() / 2)


def perturbed(weight, family, moves):
    return philox.perturbed(weight, Place(1, weight.shape[1]), FAMILIES[family], moves).reshape(len(moves), -1)


@pytest.mark.parametrize("columns", [1, 4])  # a vector, and a matrix
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_estimate_is_unbiased_on_a_quadratic(name, family, columns):
    estimator = ESTIMATORS[name].estimator
    weight = np.linspace(-1, 1, SIZE).astype(np.float32).reshape(-1, columns)
    steps = 4000 // estimator.directions
    estimates = []
    for step in range(steps):
        seeds = seeds_of(FAMILIES[family], 3, step, estimator.directions)
        found = estimate(estimator, seeds, lambda points: [quadratic(at) for at in perturbed(weight, family, points)])
        directions = perturbed(np.zeros_like(weight), family, [Move((Term(seed, 1.0),)) for seed in seeds])
        unit = estimator.unit(found.figures)
        estimates.append(np.mean([unit * s * z for s, z in zip(found.slopes, directions, strict=True)], axis=0))
    gradient = CURVES * weight.reshape(-1)
    each = FAMILIES[family].period or 1  # steps that share their columns are no draws of their own
    draws = [np.mean(estimates[begin : begin + each], axis=0) for begin in range(0, steps - each + 1, each)]
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert (np.abs(np.mean(estimates, axis=0) - gradient) < 5 * error).all()


@pytest.mark.parametrize("shape", [(SIZE,), (6, 4)], ids=["vector", "matrix"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", [name for name in RULES if RULES[name].weight_decay == 0])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_descends_a_quadratic_with_every_rule(name, schedule, rule, family, shape):
    weights = Weights({"w": torch.linspace(-1, 1, SIZE).reshape(shape)}, family)
    estimator, lr = ESTIMATORS[name]
    rule = dataclasses.replace(RULES[rule], lr=lr * LR_FACTORS.get(rule, 1.0), schedule=schedule)
    before, records = quadratic(weights.tensors["w"].numpy()), []

    def losses(points):
        return [quadratic(weights.perturbed("w", [point])[0].numpy()) for point in points]

    steps = 400
    for step in range(steps):
        found = estimate(estimator, seeds_of(weights.family, 0, step, estimator.directions), losses)
        records.append(StepRecord(step, found.loss, found.slopes, found.figures))
        weights.advance([recorded_move(rule, 0, steps, records, step, noise=weights.family)])
    assert quadratic(weights.tensors["w"].numpy()) < before / 20


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_the_direction_measured_is_the_direction_applied_for_every_tensor(kind, family):
    """What a probe sees at a coefficient is, bit for bit, what an update by that coefficient writes."""
    weights = weights_of(tiny_model(kind), family)
    move = Move((Term(11, 0.01),))
    probed = {name: weights.perturbed(name, [move])[0].clone() for name in weights.names}
    weights.advance([move])
    for name, tensor in weights.tensors.items():
        assert torch.equal(tensor, probed[name]), name


def test_a_closure_measures_the_slope_along_the_direction_that_is_applied():
    """For a loss linear in one parameter the slope is that parameter's sum of gradient x direction."""
    for chosen in ("0.weight", "0.bias", "2.weight", "2.bias"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double().float()
        parameter = dict(model.named_parameters())[chosen]
        before = parameter.detach().clone()
        gradient = torch.arange(1.0, parameter.numel() + 1).view_as(parameter)
        MeZO(model, lr=1e-3, eps=0.25, seed=5).step(lambda p=parameter, g=gradient: (p * g).sum())
        (seed,) = direction_seeds(5, 0, 1)
        direction = Weights({chosen: torch.zeros_like(before)}).perturbed(chosen, [Move((Term(seed, 1.0),))])[0]
        slope = (gradient * direction).sum()
        torch.testing.assert_close(parameter.detach(), before - 1e-3 * slope * direction, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("noise", NOISES)
def test_a_run_moves_along_the_directions_that_it_measured(tiny_folder, data_folder, noise):
    """Of a step whose columns are those of another, where some are kept; `noback epsilon` measures there too."""
    config = RunConfig(
        model=str(tiny_folder), data=str(data_folder), batch=4, rule=Sgd(lr=1e-2), noise=NOISES[noise],
        estimator=TwoSided(eps=1e-2, directions=2),
    )  # fmt: skip
    run = Run(config)
    run.task.use(drawn_data(config))
    measured = [measure(run, step, 1e-2).estimate for step in range(5)]
    records = [StepRecord(step, one.loss, one.slopes) for step, one in enumerate(measured)]
    scored, score = [], run.engine.score
    run.engine.score = lambda batch, points: scored.extend(points) or score(batch, points)
    for step, one in enumerate(measured):
        assert tuple(term.seed for term in move_at(run, records, step).terms) == one.seeds
        scored.clear()
        assert [*_along(run, [config], step, [1e-2])]
        assert {term.seed for point in scored for term in point.terms} == {*one.seeds}

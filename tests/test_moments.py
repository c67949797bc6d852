"""Adam and AdaMM along measured directions: what they do weight by weight, and where they are refused."""

import dataclasses

import pytest
import torch

from noback import Adam, AdaMM, InputError, MeZO, NobackError, RunConfig, TwoSided, train
from noback.cli.main import main
from noback.journal import StepRecord
from noback.replaying import recorded_move
from noback.rules import adam
from noback.values import Move, Term, direction_seeds
from noback.weights import Weights

STEPS = 6
SLOPES = [(0.7, -1.3), (0.0, 0.0), (-2.0, 0.1), (1e-4, 3e-4), (9.0, -9.0), (0.2, 0.2)]
RECORDS = [StepRecord(step, 1.0, slopes) for step, slopes in enumerate(SLOPES)]


def gradient(step, shape):
    """The mean of slope times direction, as the kernels make it."""
    seeds = direction_seeds(3, step, 2)
    zeros = Weights({"layer.weight": torch.zeros(shape)})
    zeros.advance([Move(tuple(Term(seed, slope / 2) for seed, slope in zip(seeds, SLOPES[step], strict=True)))])
    return zeros.tensors["layer.weight"]


def moved(rule, tensor):
    weights = Weights({"layer.weight": tensor})
    for step in range(STEPS):
        weights.advance([recorded_move(rule, 3, STEPS, RECORDS, step, noise=weights.family)])
    return weights.tensors["layer.weight"]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_does_what_pytorchs_does_with_the_same_gradient(weight_decay):
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.Parameter(tensor.clone())
    twin = torch.optim.AdamW([expected], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay)
    for step in range(STEPS):
        expected.grad = gradient(step, tensor.shape)
        twin.step()
    found = moved(Adam(lr=1e-2, weight_decay=weight_decay), tensor.clone())
    torch.testing.assert_close(found, expected.detach(), atol=1e-6, rtol=1e-6)


def test_adamm_divides_by_the_largest_mean_square_so_far():
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    expected, mean, square, largest = tensor.double(), *(torch.zeros(5, 7).double() for _ in range(3))
    for step in range(STEPS):
        found = gradient(step, tensor.shape).double()
        mean, square = 0.9 * mean + 0.1 * found, 0.99 * square + 0.01 * found**2
        largest = torch.maximum(largest, square)
        expected -= 1e-2 * mean / (largest.sqrt() + 1e-8)
    torch.testing.assert_close(moved(AdaMM(lr=1e-2), tensor.clone()).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rule", [Adam(lr=1e-3), AdaMM(lr=1e-3)], ids=lambda rule: rule.kind)
def test_bfloat16_weights_are_the_float32_ones_rounded(rule):
    """Else steps below half a unit in the last place would be lost."""
    tensor = torch.randn(8, 32, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert torch.equal(moved(rule, tensor.clone()), moved(rule, tensor.float()).bfloat16())


def test_a_step_that_does_not_follow_is_refused():
    weights = Weights({"layer.weight": torch.zeros(3, 2)})
    weights.advance([recorded_move(Adam(lr=1e-2), 3, STEPS, RECORDS, 0, noise=weights.family)])
    with pytest.raises(NobackError, match="step 2 does not follow"):
        weights.advance([recorded_move(Adam(lr=1e-2), 3, STEPS, RECORDS, 2, noise=weights.family)])


def test_more_weights_than_a_small_adapter_has_are_refused(tiny_folder, data_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(adam, "MOST", 100)
    config = RunConfig(model=str(tiny_folder), data=str(data_folder), rule=Adam(), estimator=TwoSided())
    with pytest.raises(
        InputError, match=r"rule 'adam' keeps numbers of every tuned weight.*at most 100: use --adapter"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_optimizer_has_no_place_for_moments():
    with pytest.raises(InputError, match=r"rule 'adamm' keeps numbers of every weight.*noback.train"):
        MeZO(torch.nn.Linear(2, 2), lr=1e-3, rule=AdaMM())


def test_such_a_run_is_not_streamed(tiny_folder, data_folder, tmp_path, capsys):
    config = RunConfig(model=str(tiny_folder), data=str(data_folder), steps=2, batch=4, rule=Adam(lr=1e-3))
    train(config, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--stream"]) == 2
    assert "a run with rule 'adam' cannot be streamed: leave out --stream" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("beta1", 1.0), ("beta2", -0.1), ("tiny", 0.0)])
def test_numbers_that_make_no_mean_are_refused(option, value):
    with pytest.raises(InputError, match=option):
        dataclasses.replace(Adam(), **{option: value})

"""What every method keeps to, row by row of the tables: estimators, rules, noise, objectives, adapters, engines."""

import dataclasses
import math
import tomllib
import typing

import numpy as np
import pytest
import torch

from noback.adapters import AnyAdapter
from noback.cli.flags import config_flags, config_from
from noback.cli.main import _parser
from noback.config import RunConfig, config_of
from noback.directions import AnyNoise, Normal
from noback.errors import InputError
from noback.estimators import AnyEstimator, estimate, run_search
from noback.journal import StepRecord
from noback.objectives import AnyObjective
from noback.readouts import AnyReadout
from noback.replaying import recorded_move
from noback.rules import SCHEDULES, AnyRule, Sgd, coefficients_of, move_of
from noback.stepping import probe_figures
from noback.values import UNPERTURBED, Estimate, Move, Term, direction_seeds
from tests.contracts.tables import ADAPTERS, ESTIMATORS, NOISES, OBJECTIVES, READOUTS, RULES

UNIONS = {
    "estimator": (AnyEstimator, [row.estimator for row in ESTIMATORS.values()]),
    "rule": (AnyRule, [*RULES.values()]),
    "noise": (AnyNoise, [*NOISES.values()]),
    "readout": (AnyReadout, [*READOUTS.values()]),
    "objective": (AnyObjective, [*OBJECTIVES.values()]),
    "adapter": (AnyAdapter, [*ADAPTERS.values()]),
}
ROWS = [(name, row) for name, (_, rows) in UNIONS.items() for row in rows]
METHODS = [(name, row) for name, row in ROWS if name in ("estimator", "rule", "noise", "readout")]
estimators = pytest.mark.parametrize("estimator", [row.estimator for row in ESTIMATORS.values()], ids=ESTIMATORS)
rules = pytest.mark.parametrize("rule", [dataclasses.replace(rule, lr=0.5) for rule in RULES.values()], ids=RULES)


def losses_at(points):
    """Some losses, as different as points are."""
    return [1 + sum(np.sin(term.seed % 97) * term.coefficient for term in point.terms) for point in points]


# The tables


@pytest.mark.parametrize("name", UNIONS)
def test_every_kind_has_a_row(name):
    union, rows = UNIONS[name]
    assert {type(row) for row in rows} == set(typing.get_args(union) or [union])


@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_a_configuration_comes_back_from_toml(name, row):
    config = RunConfig(**{name: row})
    assert config_of(tomllib.loads(config.toml())) == config.settled()


@pytest.mark.parametrize(("name", "row"), METHODS, ids=str)
def test_the_command_line_names_the_kind_and_each_of_its_options(name, row):
    words = [f"--{name}", row.kind]
    flags = {path: flag for flag, path in config_flags().items()}
    for item in dataclasses.fields(row):
        value = getattr(row, item.name)
        words += [] if value is None else [flags[f"{name}.{item.name}"], str(value)]
    assert getattr(config_from(_parser("train").parse_args(["train", *words])), name) == row


# Estimators


@estimators
def test_a_search_gives_a_slope_a_direction_and_the_figures_it_names(estimator):
    seeds, asked = direction_seeds(1, 2, estimator.directions), []
    found = estimate(estimator, seeds, lambda points: asked.extend(points) or losses_at(points))
    assert (len(found.slopes), len(found.figures)) == (estimator.directions, len(estimator.figures))
    assert found.seeds == seeds
    assert any(found.slopes)
    if estimator.fixed_points:
        assert len(asked) == estimator.forwards
    else:
        assert len(asked) <= estimator.forwards


@estimators
def test_numpy_and_torch_find_the_same(estimator):
    seeds = direction_seeds(1, 2, estimator.directions)
    on_host = run_search(estimator, seeds, lambda points: np.array(losses_at(points)))
    there = run_search(estimator, seeds, lambda points: torch.tensor(losses_at(points), dtype=torch.float64))
    for one, other in ((on_host.slopes, there.slopes), (on_host.figures, there.figures)):
        assert isinstance(other, torch.Tensor)
        assert other.dtype == torch.float64
        assert other.tolist() == pytest.approx(one.tolist(), rel=1e-12)


@estimators
def test_losses_that_are_all_one_move_nothing(estimator):
    found = estimate(estimator, direction_seeds(1, 2, estimator.directions), lambda points: [0.7] * len(points))
    assert set(found.slopes) == {0.0}


@estimators
def test_points_that_are_called_fixed_are(estimator):
    if estimator.fixed_points:
        seeds, rounds = direction_seeds(1, 2, estimator.directions), []
        for losses in (losses_at, lambda points: [float(index**2) for index, _ in enumerate(points)]):
            asked = []
            estimate(
                estimator, seeds, lambda points, asked=asked, losses=losses: asked.append(points) or losses(points)
            )
            rounds.append(asked)
        assert rounds[0] == rounds[1]
        assert len(rounds[0]) == 1


@estimators
def test_points_that_are_called_mirrored_come_in_pairs(estimator):
    points = next(estimator.search(direction_seeds(1, 2, estimator.directions)))
    ends = {(term.seed, term.coefficient) for point in points for term in point.terms}
    assert ({(seed, -far) for seed, far in ends} == ends) is estimator.mirrored


@estimators
def test_a_unit_of_slope_is_what_it_says(estimator):
    """On a straight line a slope times its unit is the line's own."""
    seeds = direction_seeds(1, 2, estimator.directions)
    found = estimate(estimator, seeds, losses_at)
    unit = estimator.unit(found.figures)
    assert [slope * unit for slope in found.slopes] == pytest.approx([np.sin(seed % 97) for seed in seeds], rel=1e-4)


@estimators
def test_what_a_probe_says_of_a_step_is_so(estimator):
    """On a parabola along each direction, as steep and as bent as its seed says."""
    seeds = direction_seeds(1, 2, estimator.directions)

    def loss(point):
        return 1 + sum(
            np.sin(term.seed % 97) * term.coefficient + (term.seed % 7 + 1) * term.coefficient**2
            for term in point.terms
        )  # fmt: skip

    found = estimate(estimator, seeds, lambda points: [loss(point) for point in points])
    record = StepRecord(0, found.loss, found.slopes, found.figures)
    move = move_of(Sgd(lr=1e-6), 0, 1, [found])
    figures = probe_figures(estimator, record, move, loss(UNPERTURBED), loss(move))
    assert figures["expected_change"] < 0
    assert figures["expected_change"] == pytest.approx(figures["change"], rel=0.3)
    bent = np.mean([2 * (seed % 7 + 1) * estimator.eps**2 for seed in seeds])
    further = Move((*move.terms, Term(1, 0.1)))  # a rule with a memory goes on along an older direction too
    assert "expected_change" not in probe_figures(estimator, record, further, loss(UNPERTURBED), loss(further))
    assert ("curvature" in figures) is estimator.mirrored
    assert figures.get("curvature", bent) == pytest.approx(bent, rel=1e-2)


# Rules


@rules
def test_a_rule_moves_down_the_newest_slopes_first(rule):
    """Term by term, newest step first, which is where the bits come from that round bfloat16."""
    slopes = [np.array([2.0, -1.0]) * (age + 1) for age in range(rule.memory + 1)]
    along = rule.coefficients(0.5, slopes)
    assert len(along) in {1, rule.memory + 1}  # all of them, or the newest alone
    assert (np.sign(along[0]) == [-1.0, 1.0]).all()
    as_tensors = rule.coefficients(0.5, [torch.from_numpy(some) for some in slopes])
    assert all((one == other.numpy()).all() for one, other in zip(along, as_tensors, strict=True))


@rules
def test_the_first_steps_have_fewer_before_them(rule):
    for known in range(1, rule.memory + 2):
        assert len(rule.coefficients(0.5, [np.array([1.0])] * known)) in {1, known}


@rules
def test_the_move_of_a_record_goes_as_far_back_as_the_rule_asks(rule):
    records = [StepRecord(step, 1.0, (1.0, 2.0)) for step in range(6)]
    back = 0 if rule.kind == "normalised" else rule.memory  # it looks at earlier slopes and moves along the newest
    for step in range(6):
        move = recorded_move(rule, 3, 6, records, step, noise=Normal())
        steps = range(step, max(step - back, 0) - 1, -1)
        assert [term.seed for term in move.terms] == [seed for one in steps for seed in direction_seeds(3, one, 2)]


@rules
def test_lr_and_decay_of_a_step_follow_the_schedule(rule):
    for step in range(4):
        cosine = (1.0, 0.8535533905932737, 0.5, 0.1464466094067262)[step]  # a warm-up of a tenth of 4 steps is none
        factor = {"constant": 1.0, "linear": 1 - step / 4, "warmup_cosine": cosine}[rule.schedule]
        move = move_of(rule, step, 4, [Estimate(1.0, (7,), (2.0,))])
        (far,) = rule.coefficients(0.5 * factor, [np.array([2.0])])
        assert [term.coefficient for term in move.terms] == pytest.approx(far.tolist())
        assert move.decay == pytest.approx(1 - 0.5 * factor * rule.weight_decay)


@rules
def test_slopes_far_beyond_the_others_of_their_step_are_cut_before_the_rule_sees_them(rule):
    slopes = [np.array([1.0, -90.0, 2.0, 3.0]), np.array([-4.0, 1.0, 1.0, 1.0])][: rule.memory + 1]
    cut = [np.array([1.0, -5.0, 2.0, 3.0]), np.array([-2.0, 1.0, 1.0, 1.0])][: rule.memory + 1]
    found = coefficients_of(dataclasses.replace(rule, clip=2.0), 0.5, slopes)
    on_torch = coefficients_of(dataclasses.replace(rule, clip=2.0), 0.5, [torch.from_numpy(some) for some in slopes])
    for far, there, wanted in zip(found, on_torch, rule.coefficients(0.5, cut), strict=True):
        assert far.tolist() == wanted.tolist() == there.tolist()


@pytest.mark.parametrize("slopes", [[0.0, 0.0, 0.0, 7.0], [5.0], [1.0, -2.0]], ids=["ties", "one", "two"])
def test_slopes_that_have_no_median_to_speak_of_are_not_cut(slopes):
    for some in (np.array(slopes), torch.tensor(slopes, dtype=torch.float64)):
        assert coefficients_of(Sgd(lr=1.0, clip=3.0), 1.0, [some])[0].tolist() == [
            -slope / len(slopes) for slope in slopes
        ]


@pytest.mark.parametrize("clip", [0, -1.0, math.inf, math.nan])
def test_a_clip_that_is_no_number_above_zero_is_refused(clip):
    with pytest.raises(InputError, match="clip is"):
        Sgd(clip=clip)


def test_momentum_is_the_moving_mean_of_what_sgd_does():
    momentum, sgd = RULES["momentum"], RULES["sgd"]
    slopes = [np.array([float(age + 1)]) for age in range(4)]
    found = momentum.coefficients(0.5, slopes)
    for age, (some, far) in enumerate(zip(slopes, found, strict=True)):
        (plain,) = sgd.coefficients(0.5, [some])
        assert far == pytest.approx(plain * 0.4 * 0.6**age)


def test_normalised_steps_have_the_length_of_the_learning_rate_whatever_the_slopes():
    rule = RULES["normalised"]
    for size in (1e-6, 1.0, 1e6):
        (far,) = rule.coefficients(0.5, [np.array([-size])] * 4)
        assert far == pytest.approx([0.5])


def test_normalised_divides_by_the_root_of_the_weighted_mean_square_and_moves_along_the_newest_step_alone():
    rule = RULES["normalised"]  # beta 0.5
    (far,) = rule.coefficients(0.1, [np.array([3.0, 1.0]), np.array([0.0, 2.0]), np.array([4.0, 4.0])])
    mean = (1.0 * 5.0 + 0.5 * 2.0 + 0.25 * 16.0) / 1.75
    assert far == pytest.approx(np.array([3.0, 1.0]) * -0.1 / 2 / mean**0.5)
    records = [Estimate(1.0, (7, 8), (3.0, 1.0)), Estimate(1.0, (5, 6), (0.0, 2.0))]
    assert [term.seed for term in move_of(dataclasses.replace(rule, lr=0.1), 1, 4, records).terms] == [7, 8]


def test_normalised_moves_nothing_where_all_slopes_are_zero():
    (far,) = RULES["normalised"].coefficients(0.5, [np.zeros(2)] * 3)
    assert far.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "at"),
    [
        ("cosine", {0: 1.0, 50: 0.5, 75: 0.1464466094067262}),
        ("warmup_linear", {0: 0.1, 4: 0.5 * 0.96, 9: 0.91, 50: 0.5}),
        ("warmup_cosine", {0: 0.1, 9: 0.98014701, 50: 0.5}),
    ],
)
def test_a_schedule_has_these_factors_in_a_run_of_a_hundred_steps(schedule, at):
    assert {step: SCHEDULES[schedule](step, 100) for step in at} == pytest.approx(at)
    assert all(0.0 < SCHEDULES[schedule](step, steps) <= 1.0 for steps in (1, 3, 50) for step in range(steps))

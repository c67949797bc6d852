"""Directions of an example's or a group's own: each group is measured as a batch by itself, and a record holds all."""

import dataclasses

import numpy as np
import pytest

from noback import MacroF1, OneSided, Rank1, Reward, RunConfig, Sgd, TwoSided, train
from noback.engines import Local
from noback.errors import InputError
from noback.estimators import estimate, estimate_groups
from noback.folder import RunFolder
from noback.grouping import group_count, group_size, groups_of
from noback.journal import read_journal
from noback.measuring import measure
from noback.measuring_eps import measure_eps
from noback.run import Run, drawn_data
from noback.tuned import tuned_run
from noback.values import Move, Term, direction_seeds, to_float32
from tests.conftest import write_rows
from tests.contracts.tables import ESTIMATORS
from tests.contracts.test_rounds import LineSearch

estimators = pytest.mark.parametrize(
    "estimator", [*(row.estimator for row in ESTIMATORS.values()), LineSearch(eps=1e-2)], ids=[*ESTIMATORS, "rounds"]
)


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=5, batch=6, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2), noise="rank1", directions_per="example",
    )  # fmt: skip


def opened(config):
    run = Run(config)
    run.task.use(drawn_data(config))
    return run


def test_a_batch_is_cut_into_groups_one_after_the_other():
    assert [group_size(per) for per in ("step", "example", "group:8")] == [None, 1, 8]
    assert groups_of(5, "step") == [slice(0, 5)]
    assert groups_of(3, "example") == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert groups_of(5, "group:2") == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert groups_of(5, "group:9") == [slice(0, 5)]
    for examples in range(1, 9):
        for per in ("step", "example", "group:3"):
            assert group_count(examples, per) == len(groups_of(examples, per))


@pytest.mark.parametrize("per", ["exampel", "group", "group:0", "group:-1", "group:1.5", "group:" + "9" * 30, 3, ""])
def test_another_word_is_refused(per):
    with pytest.raises(InputError, match=r"directions_per is .*; expected step, example, or group:N"):
        RunConfig(directions_per=per)


def test_more_slopes_than_a_record_holds_are_refused():
    with pytest.raises(InputError, match="makes 80,000 directions a step; expected 65,536 at most"):
        RunConfig(directions_per="example", batch=20_000, estimator=TwoSided(directions=4))
    with pytest.raises(InputError, match="makes 1,000,000,000,000 directions"):  # counted, not listed
        RunConfig(directions_per="example", batch=10**12)


@estimators
@pytest.mark.parametrize("per", ["example", "group:4"])  # of six examples: all of one size, and not
@pytest.mark.parametrize("ahead", [False, True], ids=["", "where the model is"])
def test_a_group_has_the_slopes_that_it_has_as_a_batch_by_itself(config, estimator, per, ahead, monkeypatch):
    monkeypatch.setattr(Local, "runs_ahead", ahead)
    run = opened(dataclasses.replace(config, directions_per=per))
    object.__setattr__(run.config, "estimator", estimator)
    found, batch, each = measure(run, 3, 1e-2).estimate, run.batch(3), estimator.directions
    assert found.seeds == direction_seeds(run.config.seed, 3, len(run.groups) * each)
    losses, sizes = [], [part.stop - part.start for part in run.groups]
    for group, part in enumerate(run.groups):
        own, seeds = batch.part(part), found.seeds[group * each : (group + 1) * each]
        alone = estimate(
            estimator, seeds, lambda points, own=own: [run.loss(one, own.gold) for one in run.engine.score(own, points)]
        )
        share = sizes[group] * len(sizes) / 6
        assert found.slopes[group * each : (group + 1) * each] == pytest.approx(
            [share * slope for slope in alone.slopes], rel=1e-3, abs=1e-4
        )
        losses.append(alone.loss * sizes[group] / 6)
    assert len(found.slopes) == len(run.groups) * each
    assert found.loss == pytest.approx(sum(losses), rel=1e-4)
    assert len(found.figures) == len(estimator.figures)


def test_one_group_that_is_the_whole_batch_is_a_step_as_ever(config):
    whole, grouped = (opened(dataclasses.replace(config, directions_per=per)) for per in ("step", "group:6"))
    assert measure(whole, 2, 1e-2).estimate == measure(grouped, 2, 1e-2).estimate


def test_the_mean_over_groups_is_an_unbiased_estimate_of_the_whole_batch_s_gradient():
    """Five examples in groups of two: the last group has one, and counts half as much."""
    rng = np.random.default_rng(0)
    targets, at, parts = rng.standard_normal((5, 6)), rng.standard_normal(6), groups_of(5, "group:2")
    directions = {}

    def direction(seed):
        return directions.setdefault(seed, np.random.default_rng(seed % 2**32).choice([-1.0, 1.0], 6))

    def loss(group, point):
        there = at + sum(term.coefficient * direction(term.seed) for term in point.terms)
        return float(((there - targets[parts[group]]) ** 2).sum(axis=1).mean() / 2)

    def score(asked):
        return {group: [loss(group, point) for point in points] for group, points in asked.items()}

    found = []
    for step in range(4000):
        seeds = direction_seeds(1, step, 3)
        one = estimate_groups(TwoSided(eps=1e-2), seeds, [2, 2, 1], score)
        found.append(np.mean([slope * direction(seed) for slope, seed in zip(one.slopes, seeds, strict=True)], axis=0))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (abs(np.mean(found, axis=0) - (at - targets.mean(axis=0))) < 5 * error).all()


@pytest.mark.parametrize("batch", [6, 999])  # the second is more than there are: a group for each of those
def test_a_record_has_a_slope_for_each_direction_of_each_group(config, tmp_path, batch):
    config = dataclasses.replace(config, batch=batch, estimator=TwoSided(eps=1e-2, directions=2))
    result = train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    groups = min(batch, opened(config).task.size("train"))
    assert contents.header["directions"] == 2 * groups < 100
    assert contents.record_bytes == 20 + 4 * 2 * groups
    assert all(len(record.slopes) == 2 * groups for record in contents.steps)
    assert all(slope == to_float32(slope) for record in contents.steps for slope in record.slopes)
    assert result.forwards == 5 * 4  # of the whole batch
    assert tuned_run(tmp_path / "run", "final", snapshots=False)[0].weights.digest() == result.final_weights


def test_the_applied_move_goes_along_each_group_s_own_direction(config, tmp_path):
    """Measured and applied, bit for bit: each recorded slope times the lr, along the seed it was measured at."""
    train(dataclasses.replace(config, steps=1), tmp_path / "run")
    (record,) = read_journal(tmp_path / "run" / "journal").steps
    run, _ = tuned_run(tmp_path / "run", "base", snapshots=False)
    terms = zip(direction_seeds(0, 0, 6), record.slopes, strict=True)
    run.weights.advance([Move(tuple(Term(seed, -1e-2 / 6 * slope) for seed, slope in terms))])
    assert run.weights.digest() == tuned_run(tmp_path / "run", "final", snapshots=False)[0].weights.digest()


def test_halves_are_of_groups_that_have_two_examples(config):
    assert not measure(opened(config), 0, 1e-2).halves()
    found = measure(opened(dataclasses.replace(config, directions_per="group:3")), 0, 1e-2)
    for pair, slope in zip(found.halves(), found.estimate.slopes, strict=True):
        assert (2 * pair[0] + pair[1]) / 3 == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_a_probe_promises_no_change_of_the_batch_s_loss(config, tmp_path):
    """Along a group's direction only that group's slope is known."""
    train(config, tmp_path / "run", health_every=2)
    probes = [one for one in RunFolder(tmp_path / "run").read_metrics() if one["kind"] == "probe"]
    assert probes
    assert all({"change", "curvature"} <= one.keys() and "expected_change" not in one for one in probes)


def test_slopes_at_several_eps_are_of_a_whole_batch(config, tmp_path):
    with pytest.raises(InputError, match="directions_per is 'example'; slopes at each eps are measured for a whole"):
        measure_eps(config, [1e-3], ["cross_entropy"], out=tmp_path / "eps")


@pytest.mark.parametrize("objective", [MacroF1(), "accuracy"], ids=str)
def test_any_objective_judges_a_group_as_it_judges_a_batch(config, tmp_path, objective):
    config = dataclasses.replace(config, objective=objective, directions_per="group:3", estimator=OneSided(eps=1e-1))
    result = train(config, tmp_path / "run")
    assert tuned_run(tmp_path / "run", "final", snapshots=False)[0].weights.digest() == result.final_weights


def test_a_reward_judges_what_each_example_s_own_points_write(written_config, tmp_path):
    config = dataclasses.replace(written_config, noise=Rank1(), directions_per="example")
    result = train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    assert contents.header["directions"] == config.batch
    assert tuned_run(tmp_path / "run", "final", snapshots=False)[0].weights.digest() == result.final_weights


@pytest.fixture
def written_config(tiny_causal_folder, tmp_path):
    (tmp_path / "sayings.toml").write_text('name = "sayings"\nprompt = "{opening}"\nlabel = ""\nmax_new_tokens = 5\n')
    data = write_rows(tmp_path / "data.jsonl", [{"opening": f"Opening number {n} is"} for n in range(16)])
    return RunConfig(
        model=str(tiny_causal_folder), task=str(tmp_path / "sayings.toml"), data=str(data), steps=2, batch=2,
        objective=Reward("tests.contracts.tables:length"), rule=Sgd(lr=1e-2), test_limit=4,
        estimator=TwoSided(eps=1e-1),
    )  # fmt: skip


@pytest.mark.parametrize("per", ["step", "example", "group:3"])
def test_a_readout_stands_on_top_of_directions_of_any_kind(config, tmp_path, per):
    config = dataclasses.replace(config, readout="exact", directions_per=per)
    result = train(config, tmp_path / "run")
    assert tuned_run(tmp_path / "run", "final", snapshots=False)[0].weights.digest() == result.final_weights

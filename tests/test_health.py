"""The health of a run: figures from slopes and halves, and what a run writes down of them."""

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
import torch

from noback import Accuracy, Function, RunConfig, Sgd, TwoSided, stepping
from noback.folder import RunFolder
from noback.health import agreement_figures, noise_figures, on_the_way, slope_figures
from noback.journal import read_journal
from noback.measuring import measure
from noback.replaying import step_length
from noback.training import Interrupted, resume, train
from noback.values import Move, Term, direction_seeds
from noback.watching import Silent
from noback.weights import changed_share, sample_of
from tests.conftest import tiny_model, weights_of, write_rows
from tests.test_verdict import contents


def test_slope_figures_count_zeros_exactly():
    figures = slope_figures([0.0, -2.0, 1.0, 0.0])
    assert figures == {"zero_slope_share": 0.5, "mean_abs_slope": 0.75, "min_abs_slope": 0.0, "max_abs_slope": 2.0}
    assert slope_figures([1e-30])["zero_slope_share"] == 0.0
    assert slope_figures([])["zero_slope_share"] == 0.0


def test_halves_that_share_a_signal_agree_as_signal_over_noise_says():
    draw = random.Random(1)
    signals = [draw.gauss(0, 3) for _ in range(20_000)]
    halves = [(signal + draw.gauss(0, 2), signal + draw.gauss(0, 2)) for signal in signals]
    figures = agreement_figures(halves)
    assert figures["agreement"] == pytest.approx(9 / 13, abs=0.02)
    # the whole slope is the mean of the halves: its noise has variance 2
    assert figures["signal_to_noise"] == pytest.approx(3 / math.sqrt(2), rel=0.03)
    assert agreement_figures([(0.0, 0.0)]) == {}
    assert agreement_figures([(1.0, 1.0)]) == {"agreement": 1.0}


def test_noise_is_the_rms_difference_over_the_rms_of_the_slopes():
    found = noise_figures([(1.0, 1.0, 4.0), (-2.0, -1.0, 2.0)], [3.0, -4.0])
    usual = math.sqrt(12.5)
    assert (found["directions"], found["slope"]) == (2, usual)
    assert found["repeat"] == pytest.approx(math.sqrt(0.5) / usual)
    assert found["two_eps"] == pytest.approx(math.sqrt(12.5) / usual)
    for scored, slopes in (([], [1.0]), ([(0.0, 0.0, 0.0)], [0.0]), ([(1.0, 1.0, math.nan)], [1.0])):
        assert noise_figures(scored, slopes) == {}


@pytest.mark.parametrize(
    ("dtype", "repeat", "two_eps", "told"),
    [
        ("bfloat16", 0.0, 0.12, "scored twice gives the same slope; at twice the eps it differs by 12%"),
        ("bfloat16", 0.034, 0.12, "scored twice differs by 3.4% of a usual slope; at twice the eps it differs by 12%"),
        ("float32", 0.0, 0.12, None),
        ("float32", 0.0, 0.75, "a larger eps cures"),
        ("bfloat16", 0.0, 0.75, "`noback epsilon` tells them apart"),
    ],
)
def test_the_noise_of_a_slope_is_told_of_bfloat16_and_where_it_is_much(dtype, repeat, two_eps, told):
    line = {"kind": "slope_noise", "step": 10, "repeat": repeat, "two_eps": two_eps}
    measured = on_the_way(contents([0.5] * 10, dtype=dtype), [line])
    (said,) = [text for text in measured if "at twice the eps" in text] or [None]
    assert said is None if told is None else told in said
    assert ("cures" in (said or "")) == (two_eps > 0.5)


def test_lines_without_their_numbers_are_no_measurement():
    lines = [
        {"kind": "update", "step": 0, "length": 1.0, "weight_norm": None, "changed_share": 1.0},
        {"kind": "health", "step": 0, "slopes": 100, "agreement": None, "zero_slope_share": 0.0},
        {"kind": "slope_noise", "step": 0, "repeat": None, "two_eps": 1.0},
    ]
    assert on_the_way(contents([0.5] * 10), lines) == ()


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=8, batch=4, eval_every=4, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2, directions=2),
    )  # fmt: skip


def metrics(folder, kind):
    return [line for line in RunFolder(folder).read_metrics() if line["kind"] == kind]


def test_a_run_writes_its_health_and_the_halves_are_the_batchs(config, tmp_path):
    result = train(config, tmp_path / "run")
    lines = metrics(tmp_path / "run", "health")
    assert [line["step"] for line in lines] == [4, 8]
    slopes = [slope for record in read_journal(tmp_path / "run" / "journal").steps for slope in record.slopes]
    assert lines[0]["mean_abs_slope"] == pytest.approx(sum(map(abs, slopes[:8])) / 8)
    assert result.max_abs_slope == max(map(abs, slopes))
    assert all(-1 <= line["agreement"] <= 1 for line in lines)


def test_the_mean_of_the_halves_slopes_is_the_slope(config, tmp_path):
    from noback.run import Run, drawn_data

    run = Run(config, RunFolder(tmp_path / "run"))
    run.task.use(drawn_data(config))
    measured = measure(run, 0, 1e-2)
    for slope, (one, other) in zip(measured.estimate.slopes, measured.halves(), strict=True):
        assert (one + other) / 2 == pytest.approx(slope, abs=1e-4)
        assert one != other


def test_health_takes_no_call_of_a_function_of_ones_own(config, tmp_path):
    CALLS.clear()
    train(dataclasses.replace(config, objective=Function(counted)), tmp_path / "run")
    looks, tests, points = 3, 2, 8 * 4
    assert len(CALLS) in (looks + tests + points, looks + tests + points + 1)  # the best step may be the last


CALLS = []


def counted(logits, gold):
    CALLS.append(len(gold))
    return torch.nn.functional.cross_entropy(logits, gold)


def test_health_every_sees_curvature_and_change_and_leaves_no_trace(config, tmp_path):
    plain = train(config, tmp_path / "plain")
    watched = train(config, tmp_path / "watched", health_every=2)
    assert watched.final_weights == plain.final_weights
    assert (tmp_path / "watched" / "journal").read_bytes() == (tmp_path / "plain" / "journal").read_bytes()
    probes = metrics(tmp_path / "watched", "probe")
    assert [line["step"] for line in probes] == [0, 2, 4, 6]
    assert not metrics(tmp_path / "plain", "probe")


def slopes_by_hand(run, step, eps, directions=2):
    batch, found = run.batch(step), []
    for seed in direction_seeds(run.config.seed, step, directions):
        points = [Move((Term(seed, eps),)), Move((Term(seed, -eps),))]
        plus, minus = (
            float(torch.nn.functional.cross_entropy(logits.double(), batch.gold))
            for logits in run.engine.score(batch, points)
        )
        found.append((plus - minus) / (2 * eps))
    return torch.tensor(found)


def rms(values):
    return float(torch.as_tensor(values).pow(2).mean().sqrt())


def test_the_noise_of_a_slope_is_what_the_engine_gives_by_hand(config, tmp_path):
    from noback.run import Run, drawn_data

    train(config, tmp_path / "run")
    (line,) = metrics(tmp_path / "run", "slope_noise")
    run = Run(config, RunFolder(tmp_path / "other"))
    run.task.use(drawn_data(config))
    once, again, doubled = (slopes_by_hand(run, 0, eps) for eps in (1e-2, 1e-2, 2e-2))
    steps = read_journal(tmp_path / "run" / "journal").steps[:4]  # up to the first look
    usual = rms([slope for record in steps for slope in record.slopes])
    assert (line["step"], line["directions"]) == (4, 2)
    assert line["slope"] == pytest.approx(usual)
    assert line["repeat"] == rms(again - once) == 0.0
    assert line["two_eps"] == pytest.approx(rms(doubled - once) / usual, rel=0.01)
    assert line["two_eps"] > 0


def test_rounding_is_noise_that_bfloat16_tells_of(config, tmp_path):
    found = {}
    for dtype in ("float32", "bfloat16"):
        small = dataclasses.replace(config, dtype=dtype, estimator=TwoSided(eps=1e-3, directions=2))
        train(small, tmp_path / dtype)
        (found[dtype],) = metrics(tmp_path / dtype, "slope_noise")
    assert found["bfloat16"]["two_eps"] > 10 * found["float32"]["two_eps"]
    assert found["float32"]["two_eps"] < 0.02


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_seeing_the_noise_of_a_slope_leaves_no_trace(causal, dtype, config, tiny_causal_folder, tmp_path, monkeypatch):
    config = dataclasses.replace(config, dtype=dtype)
    if causal:
        model = str(tiny_causal_folder)
        config = dataclasses.replace(config, model=model, task="sst2-causal", demonstrations=1)
    seen = train(config, tmp_path / "seen")
    monkeypatch.setattr(stepping, "_sought", lambda _: 0)
    unseen = train(config, tmp_path / "unseen")
    assert metrics(tmp_path / "seen", "slope_noise")
    assert not metrics(tmp_path / "unseen", "slope_noise")
    assert (seen.final_weights, seen.weights) == (unseen.final_weights, unseen.weights)
    assert (tmp_path / "seen" / "journal").read_bytes() == (tmp_path / "unseen" / "journal").read_bytes()


@pytest.mark.parametrize("stop_at", [1, 6])
def test_a_resumed_run_sees_the_noise_of_a_slope_once(stop_at, config, tmp_path):
    """Stopped before its first look it has told nobody yet; after it, it has."""
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(asked) == stop_at)
    assert len(metrics(tmp_path / "run", "slope_noise")) == (stop_at > 4)
    resume(tmp_path / "run")
    assert len(metrics(tmp_path / "run", "slope_noise")) == 1


def test_only_a_smooth_objective_of_ours_is_scored_again(config, tmp_path):
    for name, objective in (("staircase", Accuracy()), ("own", Function(counted, smooth=True))):
        train(dataclasses.replace(config, objective=objective), tmp_path / name)
        assert not metrics(tmp_path / name, "slope_noise")


@pytest.mark.parametrize(("steps", "sought"), [(8, 1), (250, 1), (1000, 2), (100_000, 4)])
def test_the_noise_of_a_slope_costs_less_than_a_hundredth_of_a_run_of_usual_length(steps, sought, config, tmp_path):
    from noback.run import Run

    run = Run(dataclasses.replace(config, steps=steps), RunFolder(tmp_path / "run"))
    assert stepping._sought(run) == sought
    if steps >= 250:
        assert 2 * sought < 0.01 * steps  # a direction costs two steps of one direction


def test_a_small_step_changes_the_loss_as_its_slopes_foretell(config, tmp_path):
    small = dataclasses.replace(config, rule=Sgd(lr=1e-5), estimator=TwoSided(eps=1e-3))
    train(small, tmp_path / "run", health_every=1)
    for line in metrics(tmp_path / "run", "probe"):
        assert line["expected_change"] <= 0
        assert line["change"] == pytest.approx(line["expected_change"], rel=0.1, abs=2e-6)


def test_an_update_tells_its_length_and_what_it_changed(config, tmp_path):
    train(config, tmp_path / "run")
    (first, _) = metrics(tmp_path / "run", "update")
    assert first["changed_share"] > 0.9
    assert 0 < first["length"] < first["weight_norm"]


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.float32, 0.99, 1.0), (torch.bfloat16, 0.0, 0.5)])
def test_small_updates_change_few_weights_of_bfloat16(dtype, least, most):
    """Each weight is 1; a bfloat16 next to it is 2^-8 away, far above the update."""
    weights = weights_of(tiny_model("bert", dtype=dtype))
    for tensor in weights.tensors.values():
        tensor.fill_(1.0)
    before, norm = sample_of(weights), weights.norm()
    weights.advance([Move((Term(7, 1e-4),))])
    assert least <= changed_share(weights, before) <= most
    assert changed_share(weights, sample_of(weights)) == 0.0
    assert norm == pytest.approx(math.sqrt(weights.size), rel=1e-3)


def test_the_length_of_a_move_is_the_way_the_weights_went(config, tmp_path):
    from noback.run import Run

    run = Run(config, RunFolder(tmp_path / "run"))
    before = {name: tensor.clone() for name, tensor in run.weights.tensors.items()}
    move = Move((Term(1, 1e-3), Term(2, -2e-3)))
    run.weights.advance([move])
    gone = math.sqrt(sum(float((run.weights.tensors[name] - tensor).pow(2).sum()) for name, tensor in before.items()))
    assert step_length(run, move) == pytest.approx(gone, rel=0.02)


def test_mistakes_are_the_surest_wrong_answers_with_their_texts(config, tmp_path):
    result = train(config, tmp_path / "run")
    (line,) = metrics(tmp_path / "run", "mistakes")
    rows = Path(config.data, "test.jsonl").read_text().splitlines()
    texts = {json.loads(row)["sentence"]: json.loads(row)["label"] for row in rows}
    assert len(line["mistakes"]) == round((1 - result.best) * 8)
    words = {"terrible": 0, "great": 1}
    for mistake in line["mistakes"]:
        assert texts[mistake["sentences"][0]] == words[mistake["gold"]] != words[mistake["answer"]]
        assert 0.5 <= mistake["chance"] <= 1
    chances = [mistake["chance"] for mistake in line["mistakes"]]
    assert chances == sorted(chances, reverse=True)


def test_a_confusion_matrix_counts_gold_by_answer(config, tmp_path):
    train(config, tmp_path / "run")
    for line in metrics(tmp_path / "run", "validation"):
        table = line["confusion"]
        assert [sum(row) for row in table] == [4, 4]
        assert (table[0][0] + table[1][1]) / 8 == line["accuracy"]


def test_examples_that_are_in_two_sets_are_told_of_and_counted_in_the_first_line_of_the_metrics(config, tmp_path):
    notes = []

    class Listening(Silent):
        def note(self, text):
            notes.append(text)

    train(config, tmp_path / "run", watcher=Listening())
    assert any(note.startswith("8 of 8 test examples are in train too (8 exactly, 0 but") for note in notes)
    (start,) = metrics(tmp_path / "run", "start")
    assert start["overlap"]["shared"][0] == {"of": "test", "within": "train", "examples": 8, "exact": 8, "near": 0}
    assert start["overlap"]["two_labels"] == 0


def test_labels_out_of_balance_are_told_of(config, data_folder, tmp_path):
    rows = [json.loads(line) for line in (data_folder / "train.jsonl").read_text().splitlines()]
    write_rows(data_folder / "train.jsonl", [*rows[:4], rows[4]])
    notes = []

    class Listening(Silent):
        def note(self, text):
            notes.append(text)

    train(dataclasses.replace(config, objective=Accuracy()), tmp_path / "run", watcher=Listening())
    helps = "--balance batches draws them in equal shares, and --metric balanced_accuracy or mcc judges them alike"
    assert f"train: the labels are out of balance (terrible 1, great 4); {helps}" in notes
    (start,) = metrics(tmp_path / "run", "start")
    assert start["balance"] == {"train": [1, 4], "validation": [4, 4], "test": [4, 4]}

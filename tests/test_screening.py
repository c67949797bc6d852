"""lr auto: short trials find the learning rate of a run, and nothing else of the run depends on them."""

import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import signal
import typing

import pytest
import torch

import noback
from noback import Adam, LocalEngine, Lora, MeZO, OneSided, RunConfig, Sgd, TwoSided
from noback.config import config_of
from noback.errors import InputError
from noback.evaluating import answers
from noback.folder import RunFolder
from noback.journal import StepRecord, read_header
from noback.run import Run, drawn_data
from noback.screening import screened
from noback.screening.choosing import chosen, edge_is_seen, highest, none_is_sound
from noback.screening.screening import _Ladder, lengths_of
from noback.screening.trials import Trial, Trials, has_risen, tried
from noback.training import Interrupted, train
from noback.usual import AUTO
from noback.watching import Silent
from tests.conftest import write_rows
from tests.contracts.tables import DIRECTIONS_PER, ESTIMATORS, READOUTS, RULES
from tests.test_distributed import together

STEPS = 12


class Listening(Silent):
    def __init__(self):
        self.notes, self.bars = [], []

    def note(self, text):
        self.notes.append(text)

    def progress(self, what, done, total):
        self.bars.append((what, done, total))


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=STEPS, batch=4, eval_every=6, rule=Sgd(lr=AUTO),
        estimator=TwoSided(eps=1e-2),
    )  # fmt: skip


def opened(config, watcher=None):
    run = Run(config, watcher=watcher)
    run.task.use(drawn_data(config))
    return run


def same_run(one, other):
    """The journal's bytes and the weights."""
    folders = [RunFolder(result.run) for result in (one, other)]
    assert folders[0].journal.read_bytes() == folders[1].journal.read_bytes()
    assert folders[0].config.read_text() == folders[1].config.read_text()
    assert (one.weights, one.final_weights) == (other.weights, other.final_weights)


# What comes of it


def test_the_run_is_the_one_of_the_rate_that_was_found(config, tmp_path):
    auto = train(config, tmp_path / "auto")
    lr = config_of(read_header(RunFolder(auto.run).journal)["config"]).rule.lr
    assert isinstance(lr, float)
    assert f"lr = {lr!r}" in RunFolder(auto.run).config.read_text()
    same_run(auto, train(config.with_lr(lr), tmp_path / "given"))


@pytest.mark.parametrize("kind", RULES)
def test_so_it_is_with_every_rule(config, tmp_path, kind):
    check_same(dataclasses.replace(config, rule=dataclasses.replace(RULES[kind], lr=AUTO)), tmp_path)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_and_with_every_estimator(config, tmp_path, kind):
    check_same(dataclasses.replace(config, estimator=ESTIMATORS[kind].estimator), tmp_path)


@pytest.mark.parametrize("per", DIRECTIONS_PER)
def test_and_with_directions_of_an_examples_own(config, tmp_path, per):
    check_same(dataclasses.replace(config, directions_per=per, noise=DIRECTIONS_PER[per]), tmp_path)


def test_and_with_a_readout(config, tmp_path):
    check_same(dataclasses.replace(config, readout=READOUTS["exact"]), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_and_with_an_adapter_of_either_type(config, tmp_path, dtype):
    check_same(dataclasses.replace(config, adapter=Lora(rank=2), dtype=dtype, rule=Adam(lr=AUTO)), tmp_path)


def check_same(config, tmp_path):
    auto = train(dataclasses.replace(config, steps=3, eval_every=2), tmp_path / "auto")
    given = config_of(read_header(RunFolder(auto.run).journal)["config"])
    same_run(auto, train(dataclasses.replace(given, device=None), tmp_path / "given"))


def test_the_weights_are_the_bases_again_and_the_run_knows_its_rate(config):
    run = opened(dataclasses.replace(config, readout=READOUTS["exact"]))
    before, readout = run.weights.digest(), run.readout_values
    watcher = run.watcher
    found = screened(run)
    assert (run.weights.digest(), run.readout_values) == (before, readout)
    assert (run.config.rule.lr, run.config.seed, run.watcher) == (found.lr, config.seed, watcher)


def test_the_same_seed_finds_the_same_trials_and_another_seed_others(config):
    first, again, other = (
        screened(opened(dataclasses.replace(config, seed=seed))).trials for seed in (0, 0, 1)
    )  # fmt: skip
    assert [one.records for one in first] == [one.records for one in again]
    assert first[0].records != other[0].records


def test_a_run_with_a_number_is_not_screened(config):
    assert screened(opened(config.with_lr(1e-3))) is None


@pytest.mark.parametrize("planted", [1e-9, 10.0], ids=["far too small", "far too large"])
def test_an_absurd_usual_rate_is_recovered_from(config, monkeypatch, planted):
    """The rates end up where a run moves and does not fall apart."""
    config = dataclasses.replace(config, steps=60)
    sane = screened(opened(config)).lr
    monkeypatch.setattr(RunConfig, "usual_lr", planted)
    found = screened(opened(config)).lr
    assert abs(math.log10(found / sane)) < 1


def test_a_trial_goes_on_where_it_was(config):
    """Its moves are made again: two lengths one after the other are the longer one at once."""
    run = opened(config)
    trials = Trials(run, lambda: False)
    twice, once = Trial(1e-2), Trial(1e-2)
    for length in (4, 9):
        trials.go_on(twice, length, lambda _: None)
    moved = run.weights.digest()
    trials.go_on(once, 9, lambda _: None)
    assert run.weights.digest() == moved != run.start
    assert (twice.records, twice.losses[9]) == (once.records, once.losses[9])


def test_trials_have_a_constant_rate_and_batches_of_their_own(config):
    warming = dataclasses.replace(config, rule=Sgd(lr=AUTO, schedule="warmup_cosine"))
    assert tried(warming, 0.5).rule == Sgd(lr=0.5)
    assert tried(warming, 0.5).seed != config.seed


def test_forwards_are_counted_and_named(config, tmp_path):
    listening = Listening()
    result = train(config, tmp_path / "run", watcher=listening)
    trials = [note for note in listening.notes if note.startswith("lr auto: ")]
    assert len(trials) == 1
    plain = STEPS * config.estimator.forwards
    assert result.forwards == plain + result.screening_forwards
    (line,) = [one for one in RunFolder(result.run).read_metrics() if one["kind"] == "screening"]
    held_out = sum(1 for _ in range(0, 8, config.batch))
    steps = sum(line["lengths"])
    looks = (result.screening_forwards - steps * config.estimator.forwards) / held_out
    assert looks == int(looks) >= len(line["rates"])  # the base, and each that was not lost
    assert line["forwards"] == result.screening_forwards
    bars = [(done, total) for what, done, total in listening.bars if what == "finding the learning rate"]
    assert all(a[0] <= b[0] or b[0] == 1 for a, b in itertools.pairwise(bars))
    assert all(0 < done <= total for done, total in bars)


def test_a_stop_while_it_seeks_leaves_nothing_and_the_same_command_begins_anew(config, tmp_path):
    asked = iter([False] * 7 + [True])
    with pytest.raises(Interrupted, match="no run has begun"):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert not (tmp_path / "run").exists()
    same_run(train(config, tmp_path / "run"), train(config, tmp_path / "undisturbed"))


def test_a_process_killed_while_it_seeks_leaves_nothing(config, tmp_path):
    processes = multiprocessing.get_context("forkserver")
    child = processes.Process(target=killed_at_step, args=(config, tmp_path / "run", 9))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not list(tmp_path.glob("run*"))
    same_run(train(config, tmp_path / "run"), train(config, tmp_path / "undisturbed"))


def killed_at_step(config, out, step):
    """Train; killed when so many steps of trials were taken."""
    asked = itertools.count()
    train(config, out, stop=lambda: next(asked) == step and os.kill(os.getpid(), signal.SIGKILL))


def test_ranks_find_the_rate_of_one_process_and_agree(config, tmp_path):
    config = dataclasses.replace(config, engine=LocalEngine(micro_batch=2))
    said = together(2, config, tmp_path / "shared")
    alone = train(config, tmp_path / "alone")
    assert [weights for _, weights, _ in said] == [alone.final_weights] * 2, said
    assert (tmp_path / "shared" / "journal").read_bytes() == (tmp_path / "alone" / "journal").read_bytes()


def test_a_step_longer_than_the_weights_is_lost_whatever_the_loss_says(config, monkeypatch):
    run = opened(config)
    trials, far, near = Trials(run, lambda: False), Trial(100.0), Trial(1e-3)
    monkeypatch.setattr("noback.screening.trials.has_risen", lambda *_: False)
    for trial in (far, near):
        trials.go_on(trial, 3, lambda _: None)
    assert (far.lost, len(far.records)) == (True, 1)
    assert (near.lost, len(near.records)) == (False, 3)


def test_it_works_for_an_objective_that_is_no_smooth_one(config, tmp_path):
    """Judged by right answers alone, of which a model that has all right has some to lose."""
    run, folder = opened(config), tmp_path / "learnt"
    folder.mkdir()
    said = answers(run, "validation").logits.argmax(dim=1).tolist()
    rows = [
        {"sentence": texts[0], "label": one} for texts, one in zip(run.task.sentences("validation"), said, strict=True)
    ]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    judged = {"objective": "accuracy", "estimator": TwoSided(eps=0.5, directions=4)}
    found = screened(opened(dataclasses.replace(config, data=str(folder), **judged)))
    losses = {one.lr: one.last[1] for one in found.trials}
    assert losses[found.lr] <= 0.25  # of eight right answers; two are within the noise
    assert max(losses.values()) >= 0.5


def test_where_nothing_moves_it_says_so(config):
    with pytest.raises(InputError, match="none did harm"):
        screened(opened(dataclasses.replace(config, estimator=TwoSided(eps=1e-30), objective="accuracy")))


def test_trials_are_short_beside_the_run():
    assert lengths_of(300) == [20, 40, 100]
    assert lengths_of(100_000) == [40, 80, 200]
    assert lengths_of(5) == [5, 5, 5]


# Which one is taken


FLAT = [1.0, 1.1, 0.9, 1.0]
LOW = [0.5, 0.6, 0.4, 0.5]
BAD = [3.0, 3.3, 2.9, 3.0]
LIKE_LOW = [0.49, 0.61, 0.41, 0.5]


def test_the_smallest_rate_that_is_not_worse_is_taken():
    assert chosen([FLAT, LIKE_LOW, LOW, BAD, None]) == 1
    assert chosen([FLAT, BAD, LOW]) == 2


def test_the_largest_rate_that_is_not_worse_goes_on_with_those_below_it():
    assert highest([FLAT, LOW, LIKE_LOW, BAD, None]) == 2
    assert highest([FLAT, LOW, FLAT]) == 1


class Told:
    """Trials whose losses are known: what a run with the embedded model on SST-2 showed, and who was asked for more."""

    LOSSES: typing.ClassVar = {
        2e-6: (0.72, 0.70, 0.68), 6.3e-6: (0.677, 0.591, 0.483), 2e-5: (0.582, 0.487, 0.461),
        6.3e-5: (0.486, 0.474, 0.471),
        2e-4: (0.50, 0.845, 2.6), 6.3e-4: (14.3, 1.7, 1.7),
    }  # fmt: skip

    def __init__(self):
        self.base, self.asked = self.parts(0.737), []

    @staticmethod
    def parts(loss):
        return [loss + 0.03 * (part % 3 - 1) + 0.02 * loss * (part % 2) for part in range(16)]

    def go_on(self, trial, length, _tell):
        self.asked.append((trial.lr, length))
        trial.losses[length] = self.parts(self.LOSSES[trial.lr][(20, 40, 100).index(length)])
        trial.records = [None] * length


def test_a_rate_that_is_best_at_first_is_not_taken_for_that():
    trials = Told()
    assert _Ladder(trials, Silent(), 2e-5, 300).climb() == 2e-5
    assert [lr for lr, length in trials.asked if length == 20] == sorted(Told.LOSSES)
    assert [lr for lr, length in trials.asked if length == 40] == [6.3e-6, 2e-5, 6.3e-5]  # none above the best
    assert [lr for lr, length in trials.asked if length == 100] == [2e-5, 6.3e-5]


def test_an_edge_is_a_rate_that_is_lost_or_worse():
    assert not edge_is_seen([FLAT, LOW], FLAT)
    assert not edge_is_seen([FLAT, FLAT], FLAT)
    assert edge_is_seen([LOW, BAD], FLAT)
    assert edge_is_seen([LOW, None], FLAT)
    assert none_is_sound([BAD, None], FLAT)
    assert not none_is_sound([FLAT, None], FLAT)


def test_a_loss_that_rises_out_of_sight_ends_a_trial():
    def records(*losses):
        return [StepRecord(step, loss, (0.0,)) for step, loss in enumerate(losses)]

    assert has_risen(records(1, 1, 2, 4, 8, 16), base=1.0)
    assert not has_risen(records(1, 1, 2, 4, 8), base=1.0)
    assert not has_risen(records(1, 1, 1, 1, 1, 1), base=1.0)
    assert not has_risen(records(0.01, 1, 2, 1, 1, 2), base=1.0)  # the first batch was an easy one
    assert not has_risen(records(-1, 1, 2, 4, 8, 16), base=1.0)  # a reward


# How it is asked for


def test_auto_goes_through_toml_and_keywords(config):
    assert config_of(config.table()) == config_of(config_of(config.table()).table())
    assert config_of({"rule": {"lr": "auto"}}).rule.lr == AUTO
    assert config_of({"rule": {"kind": "momentum", "lr": "auto"}}).table()["rule"]["lr"] == AUTO


@pytest.mark.parametrize("build", [lambda: Sgd(lr="fast"), lambda: config_of({"rule": {"lr": "fast"}})])
def test_another_word_is_refused(build):
    with pytest.raises(InputError, match="lr is 'fast'; expected a number"):
        build()


def test_the_command_line_takes_it_and_says_what_it_found(config, noback, tmp_path):
    options = ["--model", config.model, "--data", config.data, "--batch", 4, "--eps", 1e-2]
    code, out, err = noback("train", *options, "--steps", 4, "--lr", "auto", "--json", "--out", tmp_path / "run")
    assert code == 0
    assert "lr auto: " in err
    assert json.loads(out)["screening_forwards"] > 0
    code, out, err = noback("train", *options, "--lr", "fast", "--out", tmp_path / "other")
    assert (code, out) == (2, "")
    assert "lr is 'fast'; expected a number or auto" in err
    assert "Traceback" not in err


def test_an_optimizer_has_no_data_to_try_rates_on():
    for build in (lambda model: MeZO(model, lr="auto"), lambda model: MeZO(model, rule=Sgd(lr="auto"))):
        with pytest.raises(InputError, match="MeZO has no data"):
            build(torch.nn.Linear(2, 1))


def test_a_baseline_refuses_it(config):
    with pytest.raises(InputError, match="lr is 'auto'"):
        noback.baseline("adam", config)


def test_the_report_says_what_was_tried(config, tmp_path):
    result = train(config, tmp_path / "run")
    page = noback.report(result.run).text
    assert "found by trials with" in page


def test_one_sided_slopes_of_equal_losses_move_nothing_and_say_so(config):
    dead = dataclasses.replace(config, estimator=OneSided(eps=1e-30), objective="accuracy")
    with pytest.raises(InputError, match="none did harm"):
        screened(opened(dead))

"""Steps whose record is written after the weights have moved: as a GPU takes them, here with a CPU in its place."""

import dataclasses
import json
import math

import pytest
import torch

from noback import AdaptTies, RunConfig, Sgd, TwoSided, resume, train
from noback.engines import Plain
from noback.folder import RunFolder
from noback.journal import Journal, StepRecord, read_journal
from noback.late import scored
from noback.objectives import Accuracy, CrossEntropy, LanguageModel, answer_loss, cross_entropy
from noback.run import Run, drawn_data
from noback.stepping import Diverged
from noback.training import Interrupted
from noback.values import direction_seeds
from noback.watching import Silent
from noback.weights import Weights

STEPS = 13


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=STEPS, batch=4, eval_every=5,
        rule=Sgd(lr=1e-2, weight_decay=1e-3, schedule="linear"), estimator=TwoSided(eps=1e-2, directions=3),
    )  # fmt: skip


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(Run, "late", True)


@pytest.mark.usefixtures("late")
def test_a_run_that_is_ahead_of_its_journal_ends_on_the_bits_of_one_that_is_not(config, tmp_path):
    ahead, waiting = train(config, tmp_path / "ahead"), train(config, tmp_path / "waiting", health_every=1)
    assert ahead.final_weights == waiting.final_weights
    assert (tmp_path / "ahead" / "journal").read_bytes() == (tmp_path / "waiting" / "journal").read_bytes()
    contents = read_journal(tmp_path / "ahead" / "journal")
    assert [record.step for record in contents.steps] == list(range(STEPS))
    replayed = Run(config, RunFolder(tmp_path / "ahead"))
    replayed.go_to(STEPS, contents, snapshots=False)
    assert replayed.weights.digest() == ahead.final_weights


@pytest.mark.usefixtures("late")
def test_looks_wait_for_the_records_of_weights_that_are_ahead(config, tmp_path, monkeypatch):
    happened = watched(monkeypatch)
    train(config, tmp_path / "run")
    lead, leads, at_looks = 0, [], []
    for event in happened:
        lead += {"move": 1, "write": -1, "look": 0}[event]
        (at_looks if event == "look" else leads).append(lead)
    assert at_looks == [0] * 4  # at 0, 5, 10 and 13
    assert max(leads) == 2  # one step's record is written when the next has moved the weights
    assert leads[:2] == [-1, 0]  # the step after a look is recorded first: its update is looked at


def test_a_cpu_moves_no_weight_before_the_record_is_written(config, tmp_path, monkeypatch):
    happened = watched(monkeypatch)
    train(config, tmp_path / "run")
    steps = [event for event in happened if event != "look"]
    assert steps == ["write", "move"] * STEPS


def watched(monkeypatch):
    """What happens from now on, in its order."""
    happened = []

    def seen(owner, name, event, counts=lambda *_: True):
        function = getattr(owner, name)

        def call(*args, **options):
            found = function(*args, **options)
            happened.extend([event] if counts(*args) else [])
            return found

        monkeypatch.setattr(owner, name, call)

    seen(Weights, "advance", "move", lambda _, moves: len(moves) == 1)
    seen(Journal, "append", "write", lambda _, record: isinstance(record, StepRecord))
    seen(Run, "score", "look", lambda _, name: name == "validation")
    return happened


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("after", [2, 4, 5, 6, 12])
def test_a_stop_writes_what_the_weights_have_taken(config, tmp_path, after):
    whole = train(config, tmp_path / "whole")
    asked = iter([False] * after + [True])
    with pytest.raises(Interrupted, match=f"after step {after};"):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert len(read_journal(tmp_path / "run" / "journal").steps) == after
    assert resume(tmp_path / "run").final_weights == whole.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "whole" / "journal").read_bytes()


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("at", [1, 3, 8])
def test_a_step_that_was_taken_and_not_written_is_taken_again(config, tmp_path, monkeypatch, at):
    """As after a death between the move and the record."""
    whole = train(config, tmp_path / "whole")
    append = Journal.append

    def dying(journal, record):
        if isinstance(record, StepRecord) and record.step == at:
            raise KeyboardInterrupt
        append(journal, record)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    assert len(read_journal(tmp_path / "run" / "journal").steps) == at
    assert resume(tmp_path / "run").final_weights == whole.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "whole" / "journal").read_bytes()


@pytest.mark.usefixtures("late")
def test_a_loss_that_is_no_number_stops_the_run_and_is_not_written(config, tmp_path, monkeypatch):
    losses, calls = CrossEntropy.losses, []

    def broken(objective, logits, gold):
        calls.append(1)
        found = losses(objective, logits, gold)
        return found * math.nan if len(calls) == 9 else found

    monkeypatch.setattr(CrossEntropy, "losses", broken)
    with pytest.raises(Diverged, match="the journal up to there is sound"):
        train(config, tmp_path / "run")
    written = read_journal(tmp_path / "run" / "journal").steps
    assert len(written) == 6  # the first step was scored three times
    assert all(math.isfinite(record.loss) for record in written)


def test_slopes_and_coefficients_are_those_of_a_record_to_the_bit():
    made = torch.Generator().manual_seed(0)
    estimator, rule = TwoSided(eps=3e-4, directions=500), Sgd(lr=7e-6, weight_decay=0.1, schedule="linear")
    seeds = direction_seeds(0, 0, 500)
    losses = torch.rand(1000, generator=made, dtype=torch.float64) * torch.logspace(-6, 42, 1000, dtype=torch.float64)
    estimate = estimator.estimate(seeds, losses.tolist())
    assert math.inf in map(abs, estimate.slopes)  # beyond float32
    assert tuple(estimator.slopes(losses).tolist()) == estimate.slopes
    move, pace = rule.move(3, 100, estimate), rule.pace(3, 100, 500)
    found = (pace.share * estimator.slopes(losses)).tolist()
    assert found == [term.coefficient for term in move.terms]
    assert pace.decay == move.decay


def test_losses_of_all_points_are_those_of_each():
    made = torch.Generator().manual_seed(0)
    logits, gold = torch.randn((6, 9, 4), generator=made), torch.randint(0, 4, (9,), generator=made)
    logits[:, 2, (int(gold[2]) + 1) % 4] = -math.inf  # an example with fewer candidates
    for objective, single in ((CrossEntropy(), cross_entropy), (LanguageModel(), answer_loss)):
        found = objective.losses(logits, gold)
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx([single(one, gold) for one in logits], rel=1e-14)


@pytest.mark.usefixtures("late")
def test_the_loss_of_a_language_model_is_late_too(tmp_path):
    rows = [{"prompt": f"What comes after {word}?", "completion": " the end"} for word in ("day", "night", "rain") * 4]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RunConfig(
        model="mini-causal", task="instructions", data=str(tmp_path / "rows.jsonl"), steps=5, batch=2, test_limit=1,
        eval_every=5, objective=LanguageModel(),
    )  # fmt: skip
    ahead, waiting = train(config, tmp_path / "ahead"), train(config, tmp_path / "waiting", health_every=1)
    assert ahead.final_weights == waiting.final_weights
    assert (tmp_path / "ahead" / "journal").read_bytes() == (tmp_path / "waiting" / "journal").read_bytes()


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("steps", [20, 21])
def test_ties_are_warned_of(config, tmp_path, monkeypatch, steps):
    said = []

    class Listening(Silent):
        def note(self, text):
            said.append(text)

    monkeypatch.setattr(CrossEntropy, "losses", lambda _, logits, gold: 0 * logits.double().sum(dim=(1, 2)))
    train(dataclasses.replace(config, steps=steps), tmp_path / "run", watcher=Listening())
    assert sum("slopes" in text and "zero" in text for text in said) == 1


def test_what_is_scored_late_is_what_the_slow_twin_scores(config, tmp_path):
    run = Run(config, RunFolder(tmp_path))
    run.task.use(drawn_data(config))
    batch, points = run.batch(0), run.config.estimator.points(direction_seeds(0, 0, 3))
    found, slow = scored(run.engine, batch, points, CrossEntropy()), Plain(run.model, run.weights, run.task.word_ids)
    for ours, twins in zip(found.outputs(), slow.score(batch, points), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)
    assert found.losses() == pytest.approx([cross_entropy(one, batch.gold) for one in found.outputs()], rel=1e-14)


def test_only_a_gpu_with_a_loss_that_it_can_compute_is_late(config, tmp_path):
    run = Run(config, RunFolder(tmp_path))
    assert not run.late
    run.device = torch.device("cuda")
    assert run.late
    for other in ({"objective": Accuracy()}, {"estimator": TwoSided(eps=1e-2, adapt_ties=AdaptTies())}):
        run.config = dataclasses.replace(config, **other)
        assert not run.late

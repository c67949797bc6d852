"""Steps whose record is written after the weights have moved: as a GPU takes them, here with a CPU in its place."""

import dataclasses
import json
import math

import pytest
import torch

from noback import AdaptTies, KeptColumns, Momentum, OneSided, Rank1, RunConfig, Sgd, TwoSided, training
from noback.engines import Local, Reference
from noback.errors import Diverged
from noback.estimators import run_search
from noback.folder import RunFolder
from noback.journal import Journal, StepRecord, read_journal
from noback.measuring import advance, begin_on
from noback.objectives import Accuracy, CrossEntropy, LanguageModel, answer_loss, cross_entropy
from noback.replaying import go_to
from noback.rules import move_of
from noback.run import Run, drawn_data
from noback.training import Interrupted, resume, train
from noback.values import Estimate, Move, Term, direction_seeds
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
def ahead(monkeypatch):
    monkeypatch.setattr(Local, "runs_ahead", True)


METHODS = {
    "two_sided-sgd": {},
    "one_sided": {"estimator": OneSided(eps=1e-2, directions=3)},
    "clipped": {"estimator": TwoSided(eps=1e-2, directions=5), "rule": Sgd(lr=1e-2, clip=0.8)},
    "momentum": {"rule": Momentum(lr=1e-2, window=4, weight_decay=1e-3, schedule="linear")},
    "readout": {"readout": "exact"},
    "kept_columns": {"noise": KeptColumns(period=3), "rule": Momentum(lr=1e-2, window=4)},
    "both": {"estimator": OneSided(eps=1e-2, directions=3), "rule": Momentum(lr=1e-2, window=2)},
    "by_example": {"noise": Rank1(), "directions_per": "example", "rule": Sgd(lr=1e-2, clip=3)},
    "by_group": {"directions_per": "group:3", "estimator": OneSided(eps=1e-2, directions=3)},
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.mark.usefixtures("ahead")
@methods
def test_a_run_that_is_ahead_of_its_journal_ends_on_the_bits_of_one_that_is_not(config, tmp_path, method):
    config = dataclasses.replace(config, **method)
    ahead, waiting = train(config, tmp_path / "ahead"), train(config, tmp_path / "waiting", health_every=1)
    assert ahead.final_weights == waiting.final_weights
    assert (tmp_path / "ahead" / "journal").read_bytes() == (tmp_path / "waiting" / "journal").read_bytes()
    contents = read_journal(tmp_path / "ahead" / "journal")
    assert [record.step for record in contents.steps] == list(range(STEPS))
    replayed = Run(config, RunFolder(tmp_path / "ahead"))
    go_to(replayed, STEPS, contents, snapshots=False)
    assert replayed.weights.digest() == ahead.final_weights


@pytest.mark.usefixtures("ahead")
def test_evaluations_wait_for_the_records_of_weights_that_are_ahead(config, tmp_path, monkeypatch):
    happened = watched(monkeypatch)
    train(config, tmp_path / "run")
    lead, leads, at_evaluations = 0, [], []
    for event in happened:
        lead += {"move": 1, "write": -1, "evaluation": 0}[event]
        (at_evaluations if event == "evaluation" else leads).append(lead)
    assert at_evaluations == [0] * 4  # at 0, 5, 10 and 13
    assert max(leads) == 2  # one step's record is written when the next has moved the weights
    assert leads[:2] == [-1, 0]  # the step after an evaluation is recorded first: its update is measured


def test_a_cpu_moves_no_weight_before_the_record_is_written(config, tmp_path, monkeypatch):
    happened = watched(monkeypatch)
    train(config, tmp_path / "run")
    steps = [event for event in happened if event != "evaluation"]
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
    seen(training, "answers", "evaluation", lambda _, name: name == "validation")
    return happened


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    ("after", "method"), [(2, "both"), (4, "two_sided-sgd"), (5, "both"), (6, "momentum"), (12, "both")]
)
def test_a_stop_writes_what_the_weights_have_taken(config, tmp_path, after, method):
    config = dataclasses.replace(config, **METHODS[method])
    whole = train(config, tmp_path / "whole")
    asked = iter([False] * after + [True])
    with pytest.raises(Interrupted, match=f"after step {after};"):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert len(read_journal(tmp_path / "run" / "journal").steps) == after
    assert resume(tmp_path / "run").final_weights == whole.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "whole" / "journal").read_bytes()


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(("at", "method"), [(1, "both"), (3, "two_sided-sgd"), (8, "both")])
def test_a_step_that_was_taken_and_not_written_is_taken_again(config, tmp_path, monkeypatch, at, method):
    """As after a death between the move and the record."""
    config = dataclasses.replace(config, **METHODS[method])
    whole = train(config, tmp_path / "whole")
    append = Journal.append

    def dying(journal, record):
        if isinstance(record, StepRecord) and record.step == at:
            raise KeyboardInterrupt
        return append(journal, record)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    assert len(read_journal(tmp_path / "run" / "journal").steps) == at
    assert resume(tmp_path / "run").final_weights == whole.final_weights
    assert (tmp_path / "run" / "journal").read_bytes() == (tmp_path / "whole" / "journal").read_bytes()


@pytest.mark.usefixtures("ahead")
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


@pytest.mark.parametrize("rule", [Sgd(lr=7e-6, weight_decay=0.1, schedule="linear"), Momentum(lr=7e-6, window=2)])
def test_the_move_on_a_gpu_is_that_of_the_records_to_the_bit(rule):
    """Coefficients of tensors and of records: the same float64 operations in the same order."""
    made = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-6, 42, 500, dtype=torch.float64)
    drawn = [torch.rand(500, generator=made, dtype=torch.float64) * sizes for _ in range(rule.memory + 1)]
    steps = [(direction_seeds(0, 2 - age, 500), slopes.float().double()) for age, slopes in enumerate(drawn)]
    assert any(math.inf in slopes for _, slopes in steps)  # beyond float32
    said = []

    class Listening:
        def advance_along(self, *given):
            said.append(given)

    advance(Listening(), rule, 2, 100, steps)
    move = move_of(rule, 2, 100, [Estimate(0.0, seeds, tuple(slopes.tolist())) for seeds, slopes in steps])
    ((seeds, coefficients, decay),) = said
    assert [*zip(seeds, coefficients.tolist(), strict=True)] == [(term.seed, term.coefficient) for term in move.terms]
    assert decay == move.decay


def test_losses_of_all_points_are_those_of_each():
    made = torch.Generator().manual_seed(0)
    logits, gold = torch.randn((6, 9, 4), generator=made), torch.randint(0, 4, (9,), generator=made)
    logits[:, 2, (int(gold[2]) + 1) % 4] = -math.inf  # an example with fewer candidates
    for objective, single in ((CrossEntropy(), cross_entropy), (LanguageModel(), answer_loss)):
        found = objective.losses(logits, gold)
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx([single(one, gold) for one in logits], rel=1e-14)


@pytest.mark.usefixtures("ahead")
def test_the_loss_of_a_language_model_runs_ahead_too(tmp_path):
    rows = [{"prompt": f"What comes after {word}?", "completion": " the end"} for word in ("day", "night", "rain") * 4]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RunConfig(
        model="mini-causal", task="instructions", data=str(tmp_path / "rows.jsonl"), steps=5, batch=2, test_limit=1,
        eval_every=5, objective=LanguageModel(),
    )  # fmt: skip
    ahead, waiting = train(config, tmp_path / "ahead"), train(config, tmp_path / "waiting", health_every=1)
    assert ahead.final_weights == waiting.final_weights
    assert (tmp_path / "ahead" / "journal").read_bytes() == (tmp_path / "waiting" / "journal").read_bytes()


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("steps", [20, 21])
def test_ties_are_warned_of(config, tmp_path, monkeypatch, steps):
    said = []

    class Listening(Silent):
        def note(self, text):
            said.append(text)

    monkeypatch.setattr(CrossEntropy, "losses", lambda _, logits, gold: 0 * logits.double().sum(dim=(1, 2)))
    train(dataclasses.replace(config, steps=steps), tmp_path / "run", watcher=Listening())
    assert sum("slopes" in text and "zero" in text for text in said) == 1


def test_what_is_measured_ahead_is_what_the_reference_engine_gives(config, tmp_path):
    run = Run(config, RunFolder(tmp_path))
    run.task.use(drawn_data(config))
    batch, seeds, estimator = run.batch(0), direction_seeds(0, 0, 3), run.config.estimator
    reference = Reference(run.model, run.weights, run.task.word_ids)
    found, outputs = begin_on(run.engine, batch, CrossEntropy(), estimator, seeds).read()
    slow = []

    def score(points):
        slow.extend(reference.score(batch, points))
        return torch.tensor([cross_entropy(one, batch.gold) for one in slow], dtype=torch.float64)

    expected = run_search(estimator, seeds, score)
    for ours, theirs in zip(outputs, slow, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert found.slopes == pytest.approx(expected.slopes.tolist(), abs=1e-3)
    assert max(map(abs, found.slopes)) > 1e-2
    assert found.loss == pytest.approx(float(expected.losses.mean()), rel=1e-6)


@pytest.mark.usefixtures("ahead")
def test_only_what_can_run_ahead_does(config, tmp_path):
    run = Run(config, RunFolder(tmp_path))
    assert run.runs_ahead
    for other in ({"objective": Accuracy()}, {"adapt_ties": AdaptTies()}, {"estimator": Halving(eps=1e-2)}):
        run.config = dataclasses.replace(config, **other)
        assert not run.runs_ahead


def test_a_cpu_does_not_run_ahead(config, tmp_path):
    assert not Run(config, RunFolder(tmp_path)).runs_ahead


class Halving(TwoSided):
    """A second round of points where the first is not steep: its points depend on losses."""

    fixed_points = False

    def search(self, seeds):
        slopes = yield from super().search(seeds)
        losses = yield [Move((Term(seed, self.eps / 2),)) for seed in seeds]
        return slopes + 0 * losses

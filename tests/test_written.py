"""Choices and written answers from end to end, and the metrics of texts."""

import dataclasses
import json

import pytest
import torch

from noback import LanguageModel, RunConfig, evaluate, evaluating, generate, predict, train, tuned_run
from noback.answers import with_any_right
from noback.comparing import compare
from noback.errors import InputError
from noback.folder import RunFolder
from noback.measuring_eps import measure_eps
from noback.objectives import Accuracy, CrossEntropy, Function, answer_loss, exact_match, token_f1
from noback.run import Run, drawn_data
from noback.tasks import load_spec
from noback.values import UNPERTURBED
from tests.conftest import rows_of, write_rows


@pytest.mark.parametrize(
    ("text", "accepted", "match", "f1"),
    [
        ("The Eiffel Tower.", ["eiffel tower"], 1, 1),
        ("Eiffel tower in Paris", ["the Eiffel Tower"], 0, 2 / 3),
        ("Rome", ["Paris", "rome"], 1, 1),
        ("Rome", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
        ("the", ["a"], 1, 1),
        ("one one two", ["one two two"], 0, 2 / 3),
    ],
)
def test_texts_are_compared_as_squad_compares_them(text, accepted, match, f1):
    assert exact_match(text, accepted) == match
    assert token_f1(text, accepted) == pytest.approx(f1)


def test_the_loss_of_a_language_model_is_that_of_the_right_answers():
    logits = torch.tensor([[-1.0, -9.0], [-8.0, -3.0]])
    assert LanguageModel().loss(logits, torch.tensor([0, 1]), []) == pytest.approx(2.0)


def test_an_answer_that_is_right_as_well_counts_as_right():
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 2.0]])
    assert with_any_right(logits, torch.tensor([1, 0]), [(1, 2), (0, 2)]).tolist() == [2, 0]


@pytest.fixture
def config_for(tiny_causal_folder, tmp_path):
    def made(name, **options):
        data = write_rows(tmp_path / f"{name}.jsonl", rows_of(load_spec(name)))
        return RunConfig(model=str(tiny_causal_folder), task=name, data=str(data), steps=2, batch=4, **options)

    return made


@pytest.mark.parametrize("objective", [CrossEntropy(), LanguageModel()], ids=lambda objective: objective.kind)
@pytest.mark.parametrize("name", ["copa", "record"])
def test_a_run_over_choices_replays_to_the_same_bits(name, objective, config_for, tmp_path):
    result = train(config_for(name, objective=objective), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights
    score, _ = evaluate(run)
    assert score.accuracy == result.final


def test_a_language_model_loss_reads_the_right_choice_alone(config_for):
    config = config_for("copa")
    losses = []
    for objective, each in ((LanguageModel(), 1), (CrossEntropy(), 2)):
        run = Run(dataclasses.replace(config, objective=objective), RunFolder("."))
        run.task.use(drawn_data(config))
        batch = run.batch(0)
        assert batch.rows == each * len(batch)
        losses.append(answer_loss(run.engine.score(batch, [UNPERTURBED])[0], batch.gold))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_choices_are_predicted_by_their_texts(config_for, tmp_path):
    train(config_for("copa"), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    (chances,) = predict(run, [("It rained.", "effect", "I got wet.", "I ate.", "I slept.")])
    assert list(chances) == ["I got wet.", "I ate.", "I slept."]
    assert sum(chances.values()) == pytest.approx(1)
    with pytest.raises(InputError, match="needs 2 and at least two choices"):
        predict(run, [("It rained.", "effect")])


@pytest.mark.parametrize("name", ["squad", "drop", "instructions"])
def test_a_run_over_written_answers_has_the_language_models_loss(name, config_for, tmp_path):
    result = train(config_for(name), tmp_path / "run")
    assert result.objective == "language_model"
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights
    assert 'kind = "language_model"' in (tmp_path / "run" / "run.toml").read_text()


def test_a_model_that_writes_the_answers_is_right(config_for, monkeypatch):
    """A model that always writes one text is right where that text is accepted, and only there."""
    config = config_for("squad")
    run = Run(config, RunFolder("."))
    run.task.use(drawn_data(config))
    monkeypatch.setattr(evaluating, "write", lambda _, questions: [["The dog"] * len(questions)])
    score = evaluating.score(run, "test")
    assert (score.accuracy, score.score, score.confusion) == (1.0, 1.0, [])
    monkeypatch.setattr(evaluating, "write", lambda _, questions: [["dog house"] * len(questions)])
    assert evaluating.score(run, "test").score == pytest.approx(2 / 3)


def test_a_written_answer_is_predicted_as_text(config_for, tmp_path, noback):
    train(config_for("instructions"), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run")
    (text,) = generate(run, ["Say hello."])
    code, out, err = noback("predict", tmp_path / "run", "Say hello.", "--json")
    assert code == 0, err
    assert json.loads(out)["predictions"] == [{"text": "Say hello.", "answer": text}]
    with pytest.raises(InputError, match="has answers that are written; use generate"):
        predict(run, ["Say hello."])


def test_learning_an_answer_makes_the_embedded_model_write_it(tmp_path):
    """The loss goes down the answer's own tokens: after a few steps the model says them."""
    rows = [{"prompt": f"Question {number}:", "completion": "great"} for number in range(12)]
    data = write_rows(tmp_path / "data.jsonl", rows)
    config = RunConfig(model="mini-causal", task="instructions", data=str(data), steps=20, batch=4, test_limit=4)
    result = train(dataclasses.replace(config, eval_every=20), tmp_path / "run")
    looks = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [look["loss"] for look in looks if look["kind"] == "validation"]
    assert losses[-1] < losses[0]
    assert result.calibrated is None


@pytest.mark.parametrize(
    ("name", "objective", "sentence"),
    [
        ("squad", Accuracy(), "has answers that are written, which objective 'accuracy' cannot judge"),
        ("reviews-causal", LanguageModel(), "needs choices or written answers; task 'reviews-causal' has label words"),
        (
            "copa",
            Function("json:dumps", reads="text"),
            "has choices of its own, so objective.reads 'text' has no texts",
        ),
    ],
    ids=["text", "words", "choices"],
)
def test_an_objective_that_does_not_fit_the_answers_is_refused(name, objective, sentence, config_for, tmp_path):
    with pytest.raises(InputError) as caught:
        train(config_for(name, objective=objective), tmp_path / "run")
    assert sentence in str(caught.value)


def test_eps_is_measured_for_written_answers_by_their_own_loss(config_for, tmp_path):
    table = measure_eps(config_for("squad"), [1e-3], ["cross_entropy"], directions=2, out=tmp_path / "eps")
    assert table["rows"][0]["objective"] == "label-word language_model"
    assert table["rows"][0]["nonzero_share"] == 1.0


def test_objectives_over_choices_are_measured_each_by_its_own_rows(config_for, tmp_path):
    names = ["language_model", "cross_entropy"]
    table = measure_eps(config_for("copa"), [1e-3], names, directions=2, out=tmp_path / "eps")
    assert [row["nonzero_share"] for row in table["rows"]] == [1.0, 1.0]


def test_a_comparison_that_cannot_be_made_is_refused_before_it_begins(config_for, tmp_path):
    with pytest.raises(InputError, match="which objective 'accuracy' cannot judge"):
        compare(config_for("squad"), ["cross_entropy", "accuracy"], out=tmp_path / "compare")


def test_a_report_of_written_answers_and_choices_is_drawn(config_for, tmp_path, noback):
    for name in ("squad", "record"):
        train(config_for(name), tmp_path / name)
        code, out, err = noback("report", tmp_path / name, "--markdown")
        assert code == 0, err
        assert ("token" in out) == (name == "squad")

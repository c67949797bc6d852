"""Rewards: texts written at displaced points, and runs whose objective is a function of them."""

import dataclasses
import json
import math

import pytest
import torch

from noback import (
    AdaptTies,
    CrossEntropy,
    Function,
    LocalEngine,
    Rademacher,
    Reward,
    RunConfig,
    Sgd,
    TwoSided,
    evaluate,
    resume,
    train,
    tuned_run,
)
from noback.comparing import compare
from noback.config import config_of
from noback.engines import Local, Reference, Writing, open_model
from noback.errors import InputError
from noback.evaluating import write
from noback.journal import read_journal
from noback.measuring_eps import measure_eps
from noback.run import drawn_data
from noback.tasks import load_spec
from noback.values import UNPERTURBED, Move, Term, direction_seeds
from tests.conftest import tiny_causal, weights_of, write_rows

TEXTS = ["This film was", "I", "The best thing about the story is that the actors", "A long time ago there was"]
POINTS = [UNPERTURBED, *(Move((Term(seed, side * 0.02),)) for seed in (5, 6) for side in (1.0, -1.0))]
TASK = 'name = "sayings"\nprompt = "{opening}"\nlabel = ""\nmax_new_tokens = 5\n'
SEEN: list[tuple] = []


def length(row, text, right):
    """A reward that moves easily."""
    SEEN.append((row, text, right))
    return len(text) / 10


def endings(row, text, right):
    return text.endswith("s")


def words_in_common(row, text, right):
    return float(any(word in text for word in right[0].split()))


def prompts_of(tokenizer):
    return [[0, *tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]


# Writing at displaced points


@pytest.mark.parametrize("hold", [True, False], ids=["held", "formed for each token"])
@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2", "mistral", "gemma", "mixtral"])
def test_texts_at_displaced_points_are_those_of_a_whole_perturbed_copy_to_the_token(kind, hold, tokenizer):
    """Keys and values of one point never serve another: every point's tokens are its own copy's."""
    model = tiny_causal(kind)
    prompts, writing = prompts_of(tokenizer), Writing(tokenizer, 6)
    expected = Reference(model, weights_of(model), None).write(prompts, POINTS, writing)
    said: list[str] = []
    engine = Local(model, weights_of(model), None, hold=hold, say=said.append)
    assert engine.write(prompts, POINTS, writing) == expected
    assert not said  # held tensors were trusted
    assert engine.write(prompts, POINTS[::-1], writing) == expected[::-1]
    assert len({json.dumps(tokens) for tokens in expected}) == len(POINTS)


def test_the_embedded_model_stops_and_writes_as_its_copy_does(tokenizer):
    model = open_model("mini-causal", "float32", causal=True).model
    prompts, points = prompts_of(tokenizer), [UNPERTURBED, *(Move((Term(3, side * 5e-3),)) for side in (1.0, -1.0))]
    writing = Writing(tokenizer, 12, (" a ", "."))
    expected = Reference(model, weights_of(model), None).write(prompts, points, writing)
    found = Local(model, weights_of(model), None).write(prompts, points, writing)
    assert [writing.texts(tokens) for tokens in found] == [writing.texts(tokens) for tokens in expected]
    assert any(len(tokens) < 12 for tokens in found[0])
    assert not any(part in text for tokens in found for text in writing.texts(tokens) for part in writing.stop)


def test_micro_batches_change_no_token(tokenizer):
    model = tiny_causal("llama")
    prompts, writing = prompts_of(tokenizer), Writing(tokenizer, 6)
    one, other = (Local(model, weights_of(model), None, micro_batch=cut) for cut in (None, 3))
    assert one.write(prompts, POINTS, writing) == other.write(prompts, POINTS, writing)


@pytest.mark.parametrize("hold", [True, False])
def test_writing_leaves_no_trace_even_where_it_fails(hold, tokenizer):
    model = tiny_causal("llama")
    weights = weights_of(model)
    before, tensors = weights.digest(), {name: id(tensor) for name, tensor in model.named_parameters()}
    engine = Local(model, weights, None, hold=hold)
    engine.write(prompts_of(tokenizer), POINTS, Writing(tokenizer, 4))
    hook = model.lm_head.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("out of luck")))
    with pytest.raises(ValueError, match="out of luck"):
        engine.write(prompts_of(tokenizer), POINTS[1:], Writing(tokenizer, 4))
    hook.remove()
    assert weights.digest() == before
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == tensors
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_that_keeps_a_tensor_elsewhere_is_not_trusted_with_held_ones(tokenizer):
    """Its head uses the parameter from where the head has put it away: a tensor that stands in is not seen."""
    model = tiny_causal("llama", tied=False)
    kept, said = model.lm_head.weight, []
    weights = weights_of(model)
    expected = Local(model, weights, None, hold=False).write(prompts_of(tokenizer), POINTS, Writing(tokenizer, 4))
    model.lm_head.forward = lambda x: torch.nn.functional.linear(x, kept)
    engine = Local(model, weights, None, say=said.append)
    assert engine.write(prompts_of(tokenizer), POINTS, Writing(tokenizer, 4)) == expected
    assert "in a way of its own" in said[0]


# Runs


@pytest.fixture
def config(tiny_causal_folder, tmp_path):
    """Openings without any right answer."""
    (tmp_path / "sayings.toml").write_text(TASK)
    data = write_rows(tmp_path / "data.jsonl", [{"opening": f"Opening number {n} is"} for n in range(16)])
    return RunConfig(
        model=str(tiny_causal_folder), task=str(tmp_path / "sayings.toml"), data=str(data), steps=6, batch=4,
        eval_every=3, estimator=TwoSided(eps=2e-2, directions=8), rule=Sgd(lr=1e-3), objective=Reward(length),
    )  # fmt: skip


def test_a_reward_is_given_the_row_the_text_and_the_right_answers():
    rewards = Reward(words_in_common).rewards([({"a": "b"}, "two cats", ["a cat", "x"]), ({}, "none", ("dog",))])
    assert rewards.tolist() == [[1.0], [0.0]]
    assert Reward(words_in_common).loss(rewards, torch.zeros(2), []) == -0.5


def test_the_text_of_a_step_is_what_the_run_writes(config, tmp_path):
    SEEN.clear()
    train(dataclasses.replace(config, steps=1), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "base")
    row, text, right = SEEN[0]
    assert right == ()
    assert write(run, run.task.asked([row["opening"]])) == [[text]]


@pytest.mark.parametrize(
    "options", [{}, {"noise": Rademacher(), "engine": LocalEngine(micro_batch=3)}], ids=["", "rademacher"]
)
def test_a_run_over_a_reward_replays_to_the_same_bits_without_its_function(config, tmp_path, monkeypatch, options):
    result = train(dataclasses.replace(config, **options), tmp_path / "run")
    steps = read_journal(tmp_path / "run" / "journal").steps
    assert {len(record.slopes) for record in steps} == {8}
    assert result.zero_slope_share < 1
    monkeypatch.delitem(globals(), "length")
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights


def test_the_best_weights_are_those_with_the_highest_reward(config, tmp_path):
    result = train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    looks = {look.step: look.score for look in contents.evaluations}
    assert len(set(looks.values())) > 1
    assert looks[result.best_step] == max(looks.values())
    assert (result.metric, result.objective, result.best) == ("reward", "reward", None)
    score, _ = evaluate(tuned_run(tmp_path / "run")[0], trust=True)
    assert (score.score, score.objective) == (result.best_score, -result.best_score)


def test_the_slope_is_that_of_minus_the_mean_reward(config, tmp_path):
    """Going against the slope raises the reward: the loss of each side, by hand."""
    train(dataclasses.replace(config, steps=1, estimator=TwoSided(eps=2e-2)), tmp_path / "run")
    (record,) = read_journal(tmp_path / "run" / "journal").steps
    run, _ = tuned_run(tmp_path / "run", "base")
    run.task.use(drawn_data(run.config))
    questions = run.task.step_questions(0, 4, 0)
    assert len(questions) == 4
    losses = []
    for side in (1.0, -1.0):
        point = Move((Term(direction_seeds(0, 0, 1)[0], side * 2e-2),))
        writing = Writing(run.tokenizer, 5)
        twin = Reference(run.model, run.weights, None).write([one.ids for one in questions], [point], writing)[0]
        losses.append(-sum(len(text) / 10 for text in writing.texts(twin)) / 4)
    assert record.loss == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert record.slopes[0] == pytest.approx((losses[0] - losses[1]) / 4e-2, rel=1e-5)


def test_a_run_whose_reward_fails_midway_loses_nothing(config, tmp_path, monkeypatch):
    undisturbed = train(config, tmp_path / "undisturbed")
    calls, sound = iter(range(10**6)), length

    def fails_later(row, text, right):
        if next(calls) > 200:
            raise KeyError("no such format")
        return sound(row, text, right)

    with monkeypatch.context() as patch:
        patch.setitem(globals(), "length", fails_later)
        with pytest.raises(InputError, match=r"raised KeyError.*nothing is lost: fix it, then noback resume"):
            train(dataclasses.replace(config, objective=Reward("tests.test_rewards:length")), tmp_path / "run")
    assert 0 < len(read_journal(tmp_path / "run" / "journal").steps) < 6
    assert resume(tmp_path / "run", trust=True).final_weights == undisturbed.final_weights


def test_ties_of_a_reward_make_eps_grow(config, tmp_path):
    estimator, ties = TwoSided(eps=1e-7, directions=2), AdaptTies(window=1, factor=10.0, largest=1e-2)
    result = train(dataclasses.replace(config, steps=7, estimator=estimator, adapt_ties=ties), tmp_path / "run")
    changes = read_journal(tmp_path / "run" / "journal").eps_changes
    assert [change.step for change in changes][:2] == [1, 2]
    assert 0 < result.zero_slope_share < 1


@pytest.mark.parametrize("adapter", ["lora", "prefix"])
def test_what_is_put_beside_the_model_is_rewarded_too(config, adapter, tmp_path):
    estimator = TwoSided(eps=0.5, directions=4)
    table = {**dataclasses.replace(config, steps=2, estimator=estimator).given(), "adapter": adapter}
    result = train(config_of(table), tmp_path / "run")
    assert result.zero_slope_share < 1
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights


def test_right_answers_of_the_data_reach_the_reward(config, tmp_path):
    data = write_rows(tmp_path / "own.jsonl", [{"prompt": f"Say {n}", "completion": f"word {n}"} for n in range(12)])
    SEEN.clear()
    own = dataclasses.replace(config, task="instructions", data=str(data), steps=1, batch=2, test_limit=2)
    train(dataclasses.replace(own, estimator=TwoSided(eps=2e-2)), tmp_path / "run")
    assert all(right == (f"word {row['prompt'].split()[1]}",) for row, _, right in SEEN)


def test_eps_is_measured_for_a_reward(config, tmp_path):
    table = measure_eps(config, [1e-9, 2e-2], ["reward:tests.test_rewards:length"], directions=3, out=tmp_path / "eps")
    shares = {row["eps"]: row["nonzero_share"] for row in table["rows"]}
    assert shares[1e-9] == 0.0
    assert shares[2e-2] > 0.0


def test_two_rewards_are_compared_under_their_names(config, tmp_path):
    names = ["reward:tests.test_rewards:length", "reward:tests.test_rewards:endings"]
    table = compare(dataclasses.replace(config, steps=1), names, out=tmp_path / "compare")
    assert [row["objective"] for row in table["rows"]] == [name.replace("reward:", "reward ") for name in names]
    assert {row["before"] for row in table["rows"]} == {None}


# The command line, the report, and what is refused


def test_the_command_line_trains_and_evaluates_a_reward(config, tmp_path, noback):
    code, out, err = noback(
        "train", "--model", config.model, "--task", config.task, "--data", config.data, "--steps", 20, "--batch", 2,
        "--directions", 2, "--eps", 2e-2, "--eval-every", 10, "--objective", "reward:tests.test_rewards:length",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, err
    assert "mean test reward" in out
    assert "mean validation reward" in out
    assert "step 0  validation reward" in err
    code, out, err = noback("evaluate", tmp_path / "run", "--json", "--trust")
    assert code == 0, err
    values = json.loads(out)
    assert math.isfinite(values["reward"])
    assert values["accuracy"] is None
    code, out, _ = noback("evaluate", tmp_path / "run", "--trust")
    assert out.startswith("reward ")
    code, out, err = noback("report", tmp_path / "run", "--markdown")
    assert code == 0, err
    assert "Test reward" in out
    assert "mean validation reward" in out
    assert "--set 'objective.function=\"tests.test_rewards:length\"'" in out
    assert "accuracy" not in out
    code, out, err = noback("report", tmp_path / "run")
    assert code == 0, err


def test_a_reward_is_named_in_a_text_or_a_table():
    for entry in ("reward:my_rewards:short", {"kind": "reward", "function": "my_rewards:short"}):
        assert config_of({"objective": entry}).objective == Reward("my_rewards:short")
    assert config_of({"objective": "reward:short"}).objective == Function("reward:short")


def nothing(row, text, right):
    return None


def several(row, text, right):
    return torch.zeros(2)


def endless(row, text, right):
    return math.inf


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (nothing, "returned NoneType None; expected a number"),
        (several, r"returned shape \(2,\); expected one number for one text"),
        (endless, "returned inf; expected a finite number"),
    ],
)
def test_a_reward_that_is_no_number_is_refused_with_its_name(function, said):
    with pytest.raises(InputError, match=f"{function.__name__}.*{said}"):
        Reward(function).rewards([({}, "a text", ())])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "reviews-causal", "data": None}, "has answers to choose from"),
        ({"objective": Reward("no_such_module_here:f")}, "cannot be imported"),
        ({"objective": CrossEntropy()}, "names no label, so only a reward can judge"),
        ({"objective": Function("json:dumps")}, "names no label, so only a reward can judge"),
        ({"demonstrations": 2}, "names no label, so no example of it can be shown"),
    ],
    ids=["words", "import", "cross-entropy", "function", "demonstrations"],
)
def test_what_no_reward_can_do_is_refused_in_a_sentence(changes, said, config, tmp_path):
    with pytest.raises(InputError, match=said):
        train(dataclasses.replace(config, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_label_is_one_whose_answers_are_written(tmp_path):
    (tmp_path / "words.toml").write_text(
        'name = "w"\nprompt = "{text} It was"\nlabel = ""\n[words]\n0 = "bad"\n1 = "good"\n'
    )
    with pytest.raises(InputError, match="has an empty label"):
        load_spec(str(tmp_path / "words.toml"))


def test_a_baseline_of_a_reward_is_refused(config, noback):
    code, _, err = noback(
        "baseline", "zero-shot", "--model", config.model, "--task", config.task, "--data", config.data,
        "--objective", "reward:tests.test_rewards:length",
    )  # fmt: skip
    assert code == 2
    assert "a baseline is measured by right answers" in err

"""Numbers that are none: nan and infinite logits, losses, scores and weights are an error wherever they appear."""

import ast
import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch

from noback import (
    Accuracy,
    CrossEntropy,
    Function,
    InputError,
    LanguageModel,
    MacroF1,
    NobackError,
    Reward,
    RunConfig,
    Sgd,
    TwoSided,
    baselines,
    evaluate,
    predict,
    resume,
    stepping,
    train,
    tuned_run,
)
from noback.answers import scored
from noback.baselines import baseline
from noback.calibration import content_free
from noback.comparing import compare
from noback.engines import Local, check_numbers
from noback.errors import Diverged, NoNumbers
from noback.folder import RunFolder
from noback.journal import Contents, Evaluation, read_journal
from noback.json_text import json_text
from noback.measuring import begin_on
from noback.measuring_eps import measure_eps
from noback.run import Run, drawn_data
from noback.tasks.encoding import Candidates
from noback.tuned import export
from noback.values import direction_seeds
from tests.conftest import POSITIVE, write_rows

NAN, INF = math.nan, math.inf
FAR = Sgd(lr=1e38, weight_decay=0.9)  # one step, and no answer is a number any more, whatever its slopes
SOURCES = Path(__file__).parent.parent / "src" / "noback"


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=8, batch=4, eval_every=3, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2, directions=2),
    )  # fmt: skip


@pytest.fixture
def run(config):
    made = Run(config)
    made.task.use(drawn_data(config))
    return made


def broken(run):
    """The run with one weight that is no number, which every answer reads."""
    next(iter(run.weights.tensors.values()))[...] = NAN
    return run


def metrics(folder, kind):
    return [line for line in RunFolder(folder).read_metrics() if line["kind"] == kind]


def parsed(text):
    """JSON as a strict reader takes it."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


# What is a number


def choices(*counts):
    return Candidates(torch.zeros((sum(counts), 1), dtype=torch.long), counts, max(counts))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("candidates", "place"), [(None, (1, 2)), (choices(3, 3), (1, 2)), (choices(2, 3), (0, 1)), (choices(3, 1), (1, 0))]
)
def test_a_label_logit_of_an_example_that_is_no_number_is_refused(candidates, place, value):
    logits = torch.zeros((2, 3))
    check_numbers(logits, candidates)
    logits[place] = value
    with pytest.raises(NoNumbers, match="1 of 2 examples have label logits that are no numbers"):
        check_numbers(logits, candidates)
    with pytest.raises(NoNumbers, match="1 of 2 examples"):
        check_numbers(torch.stack([torch.zeros((2, 3)), logits]), candidates)


def test_minus_infinity_beyond_the_candidates_of_an_example_is_legal_and_nothing_else_there():
    logits = torch.tensor([[0.0, 1.0, -INF], [0.0, 1.0, 2.0]])
    check_numbers(logits, choices(2, 3))
    check_numbers(logits.expand(4, 2, 3), choices(2, 3))
    for value in (NAN, INF):
        with pytest.raises(NoNumbers):
            check_numbers(logits.nan_to_num(neginf=value), choices(2, 3))


def test_examples_with_fewer_candidates_are_answered_by_the_engine(tiny_causal_folder, tmp_path):
    """The -inf that the engine pads with is no error; the batch says where it may stand."""
    (tmp_path / "pick.toml").write_text(
        'name = "pick"\nprompt = "{text} so"\nchoices = ["options"]\ncontinuation = "{choice:l}"\nlabel = "label"\n'
    )
    options = ["wet", "dry", "a long day"]
    rows = [{"text": f"Rain {n}.", "options": options[: 2 + n % 2], "label": 0} for n in range(8)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    config = RunConfig(model=str(tiny_causal_folder), task=str(tmp_path / "pick.toml"), data=str(data), batch=4)
    run = Run(config)
    run.task.use(drawn_data(config))
    (logits,) = scored(run.engine, run.batch(0))
    assert logits.isneginf().any()


def test_every_score_that_is_judged_is_checked():
    """`engine.score` is called by `answers.scored`; elsewhere to be timed, or by an engine that stands around it."""
    called = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"engine\.score\(", path.read_text())
    }
    timed = {"bench/contenders.py", "reproduction/grid_runner.py"}
    around = {"engines/data_parallel.py", "engines/with_rows.py"}
    assert called == {"answers.py", *around, *timed}


# Training


@pytest.fixture
def lopsided(data_folder):
    """Nine of ten examples have the label that answers of nan fall on."""
    rows = [{"sentence": f"{text} {number}", "label": int(number == 0)} for number in range(10) for text in POSITIVE]
    for split in ("train", "validation", "test"):
        write_rows(data_folder / f"{split}.jsonl", rows)
    return data_folder


OBJECTIVES = [CrossEntropy(), Accuracy(), MacroF1()]


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: one.kind)
@pytest.mark.usefixtures("lopsided")
def test_weights_that_are_no_numbers_stop_a_run_and_are_never_its_best(objective, steps, config, tmp_path):
    """Also where the first step is the last, and where only an evaluation comes after it."""
    config = dataclasses.replace(config, objective=objective, steps=steps, rule=FAR)
    with pytest.raises(
        Diverged, match=r"no numbers .* at step \d+, so the run stops; .*best weights are those of step 0"
    ):
        train(config, tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    assert [one.step for one in contents.evaluations] == [0]
    assert contents.best() == contents.evaluations[0]
    (line,) = metrics(tmp_path / "run", "diverged")
    assert line["step"] == len(contents.steps)
    assert not metrics(tmp_path / "run", "result")
    for text in RunFolder(tmp_path / "run").metrics.read_text().splitlines():
        parsed(text)
    tuned, step = tuned_run(tmp_path / "run")
    assert step == 0
    assert evaluate(tuned)[0].score == pytest.approx(metrics(tmp_path / "run", "zero_shot")[0]["score"])


@pytest.mark.usefixtures("lopsided")
def test_a_resumed_run_stops_where_it_stopped(config, tmp_path):
    config = dataclasses.replace(config, objective=Accuracy(), rule=FAR)
    said = []
    for go in (lambda: train(config, tmp_path / "run"), lambda: resume(tmp_path / "run")):
        with pytest.raises(Diverged) as error:
            go()
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.usefixtures("lopsided")
def test_the_command_line_says_it_in_one_sentence_with_an_exit_code(config, tmp_path, noback):
    code, out, err = noback(
        "train", "--model", config.model, "--data", config.data, "--steps", 4, "--batch", 4, "--objective", "accuracy",
        "--lr", "1e38", "--weight-decay", "0.9", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert (code, out) == (1, "")
    assert "are no numbers" in err.splitlines()[-1]
    assert f"noback evaluate {tmp_path / 'run'}" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_step_that_a_later_probe_finds_unsound_is_named(config, tmp_path):
    with pytest.raises(Diverged, match=r"no numbers .* at step 1,"):
        train(dataclasses.replace(config, rule=FAR), tmp_path / "run", health_every=1)
    assert len(read_journal(tmp_path / "run" / "journal").steps) == 1


def huge(row, text, right):
    return 1e300


def vast(logits, gold):
    return 1e300


def test_a_score_beyond_float32_is_no_number(config, tmp_path):
    with pytest.raises(NoNumbers, match=r"the objective of 8 examples is 1e\+300, which is no finite float32"):
        train(dataclasses.replace(config, objective=Function(vast)), tmp_path / "run")


@pytest.fixture
def sayings(tiny_causal_folder, tmp_path):
    (tmp_path / "task.toml").write_text('name = "sayings"\nprompt = "{opening}"\nlabel = ""\nmax_new_tokens = 3\n')
    rows = write_rows(tmp_path / "rows.jsonl", [{"opening": f"Once {number}"} for number in range(12)])
    return RunConfig(
        model=str(tiny_causal_folder), task=str(tmp_path / "task.toml"), data=str(rows), steps=4, batch=2,
        objective=Reward(constant), estimator=TwoSided(eps=1e-2), test_limit=2,
    )  # fmt: skip


def constant(row, text, right):
    return float(len(text))


def test_a_reward_beyond_float32_is_no_number(sayings, tmp_path):
    with pytest.raises(NoNumbers, match="no finite float32"):
        train(dataclasses.replace(sayings, objective=Reward(huge)), tmp_path / "run")


def test_texts_that_were_chosen_by_no_numbers_stop_a_run_of_rewards(sayings, tmp_path):
    """A reward of such texts is as finite as any."""
    with pytest.raises(Diverged, match="prompts give their next tokens scores that are no numbers"):
        train(dataclasses.replace(sayings, rule=FAR), tmp_path / "run")


@pytest.mark.parametrize("objective", [CrossEntropy(), LanguageModel()])
def test_no_loss_on_a_gpu_hides_a_logit_that_is_no_number(objective, run, monkeypatch):
    """The cross-entropy of the right label is finite where the wrong one's logit is -inf."""
    logits, batch = Local.logits, run.batch(0)

    @torch.inference_mode()
    def unsound(engine, batch, points):
        found = logits(engine, batch, points).clone()
        found[1, 2, 1 - int(batch.gold[2])] = -INF
        return found

    monkeypatch.setattr(Local, "logits", unsound)
    found = begin_on(run.engine, batch, objective, run.config.estimator, direction_seeds(0, 0, 2))
    assert found.host[0].isfinite().all()
    with pytest.raises(NoNumbers, match="1 of 4 examples"):
        found.read()


def test_an_eps_that_is_too_large_only_for_the_noise_of_a_slope_stops_no_run(config, tmp_path, monkeypatch):
    measure = stepping.measure

    def far(run, step, eps):
        if eps == 2e-2:
            raise NoNumbers("the loss is nan")
        return measure(run, step, eps)

    monkeypatch.setattr(stepping, "measure", far)
    train(config, tmp_path / "run")
    assert not metrics(tmp_path / "run", "slope_noise")


def test_the_best_evaluation_of_an_older_journal_is_one_of_numbers():
    looks = [Evaluation(0, 0.5, 0.7), Evaluation(5, 0.9, NAN), Evaluation(10, NAN, 0.1), Evaluation(15, 0.8, INF)]
    assert Contents({}, [], 0, 0, evaluations=looks).best() == looks[0]
    assert Contents({}, [], 0, 0, evaluations=looks[1:]).best() is None


# What is done with a run


def test_predictions_evaluations_and_calibration_of_no_numbers_are_refused(run):
    broken(run)
    for judged in (lambda: predict(run, ["a film"]), lambda: evaluate(run), lambda: content_free(run, "test")):
        with pytest.raises(NoNumbers, match="label logits that are no numbers"):
            judged()


@pytest.mark.usefixtures("lopsided")
def test_weights_that_are_no_numbers_are_not_written(config, tmp_path, noback):
    with pytest.raises(Diverged):
        train(dataclasses.replace(config, rule=Sgd(lr=3e38), estimator=TwoSided(eps=1.0)), tmp_path / "run")
    for command in ("export", "replay"):
        code, out, err = noback(command, tmp_path / "run", tmp_path / command, "--at", "final", "--json")
        assert (code, out) == (1, "")
        assert re.search(r"tensor '\S+' of step 1 holds values that are no numbers", err)
        assert not (tmp_path / command).exists()
        assert noback(command, tmp_path / "run", tmp_path / command)[0] == 0
    for words in (("evaluate",), ("predict", "a film")):
        code, out, err = noback(words[0], tmp_path / "run", *words[1:], "--at", "final", "--json")
        assert (code, out) == (1, "")
        assert "are no numbers" in err


def test_an_export_names_the_tensor_that_is_no_number(run, tmp_path):
    name = list(run.weights.names)[3]
    run.weights.tensors[name].view(-1)[-1] = INF
    with pytest.raises(NobackError, match=re.escape(f"tensor '{name}' holds values that are no numbers")):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", ["reviews", "reviews-causal", "instructions"])
def test_weights_too_large_to_answer_with_are_not_written(task, tiny_folder, tiny_causal_folder, data_folder, tmp_path):
    """They are finite themselves; what the model makes of them is not."""
    model = tiny_folder if task == "reviews" else tiny_causal_folder
    made = Run(RunConfig(model=str(model), task=task, data=str(data_folder)))
    export(made, tmp_path / "sound")
    for tensor in made.weights.tensors.values():
        tensor.fill_(3e38) if tensor.dim() == 1 else None
    with pytest.raises(NobackError, match=r"no numbers .* with the weights of step 4, so nothing was written"):
        export(made, tmp_path / "out", step=4)
    assert not (tmp_path / "out").exists()


def test_adam_that_diverges_says_so(config, monkeypatch):
    with pytest.raises(Diverged, match=r"after step 3 of Adam: try a smaller lr"):
        baseline(dataclasses.replace(config, rule=Sgd(lr=1e30)), "adam")
    monkeypatch.setattr(baselines, "Run", lambda *args, **more: broken(Run(*args, **more)))
    with pytest.raises(NoNumbers):
        baseline(config, "zero-shot")


def test_an_eps_at_which_answers_are_no_numbers_is_refused(config, tmp_path):
    with pytest.raises(InputError, match=r"no numbers .* at eps 1e\+30: it is too far from the weights; leave it out"):
        measure_eps(config, [1e-2, 1e30], directions=2, out=tmp_path / "eps")
    assert not (tmp_path / "eps").exists()


@pytest.mark.usefixtures("lopsided")
def test_a_comparison_calls_a_run_of_no_numbers_diverging_under_every_objective(config, tmp_path):
    far = dataclasses.replace(config, rule=FAR)
    table = compare(far, ["cross_entropy", "accuracy", "macro_f1"], out=tmp_path / "all")
    assert [(row["verdict"], row["after"]) for row in table["rows"]] == [("diverging", None)] * 3
    parsed((tmp_path / "all" / "comparison.json").read_text())


# JSON


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_number_that_is_none_is_null_in_json(value, tmp_path):
    given = {"a": [1.5, (value, "x")], "b": {"c": value, "d": True}, "e": 3}
    assert parsed(json_text(given)) == {"a": [1.5, [None, "x"]], "b": {"c": None, "d": True}, "e": 3}
    assert json_text({"b": 1, "a": 2.0}, sort_keys=True) == json.dumps({"b": 1, "a": 2.0}, sort_keys=True)
    folder = RunFolder(tmp_path)
    folder.add_metrics(kind="update", length=value)
    assert parsed(folder.metrics.read_text()) == {"kind": "update", "length": None}


def test_every_json_that_is_written_comes_from_one_function():
    """The journal's header holds checked options and a model's own entries; identity makes digests, the report TOML."""
    callers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps") and ast.unparse(node.value) == "json"
    }
    assert callers == {
        "json_text.py", "journal_layout.py", "engines/identity.py", "engines/shards.py", "reporting/command.py",
        "tensor_bytes.py",  # the table of a safetensors file: names and whole numbers
    }  # fmt: skip

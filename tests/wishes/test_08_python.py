"""Wish 8: Python as people write it: names on Tab, keywords, rows in memory, loaded models, results to work with."""

import ast
import dataclasses
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_type_hints

import pytest

import noback
from noback import InputError, RunConfig
from noback.adapters.base import floating
from noback.flag_names import FLAGS
from noback.journal import read_header
from noback.keywords import config_flags, config_with
from noback.option_types import ConfigOptions, MeasureOptions, TrainOptions
from noback.tables import ComparedRow, Comparison, EpsAdvice, EpsRow, EpsTable
from noback.tasks import data_files, load_spec, spec_of
from noback.tensor_bytes import digest
from tests.conftest import NEGATIVE, POSITIVE, write_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture
def noback_cli(request):
    """Runs a command in this process: (exit code, stdout, stderr); here `noback` is the package."""
    return request.getfixturevalue("noback")


def test_dir_and_tab_show_the_public_names_and_nothing_else():
    code = "import noback; names = dir(noback); print(*names)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(noback.__all__) == {name for name in names if not name.startswith("_")}
    assert {"train", "RunConfig", "MeZO", "CurvatureWeighted", "__version__"} <= set(names)


def test_a_type_checker_sees_each_public_name_and_no_other():
    tree = ast.parse((ROOT / "src" / "noback" / "__init__.py").read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {name.asname for node in guarded[0].body for name in node.names}
    assert seen == set(noback.__all__)
    assert not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def test_the_package_ships_its_types():
    assert (Path(noback.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        noback.trian  # noqa: B018


SMALL = {"batch": 4, "eval_every": 2, "test_limit": 8}


@pytest.fixture
def small(tiny_folder, data_folder, tmp_path):
    """The keywords of a run of a moment."""
    return {"model": tiny_folder, "task": "sst2", "data": data_folder, "out": tmp_path / "run", **SMALL}


def test_train_takes_the_options_of_the_command_line_by_keyword(small, tmp_path, noback_cli):
    result = noback.train(
        steps=2, lr=1e-4, directions=2, estimator="one_sided", rule="momentum", adapter="lora", **small
    )
    flags = [word for key in SMALL for word in (f"--{key.replace('_', '-')}", SMALL[key])]
    code, out, err = noback_cli(
        "train", "--model", small["model"], "--task", "sst2", "--data", small["data"], "--steps", 2, "--lr", "1e-4",
        "--directions", 2, "--estimator", "one_sided", "--rule", "momentum", "--adapter", "lora", "--json", *flags,
        "--out", tmp_path / "other",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["final_weights"] == result.final_weights
    assert (tmp_path / "other" / "run.toml").read_text() == (tmp_path / "run" / "run.toml").read_text()


def test_a_keyword_wins_over_the_configuration_that_is_given_with_it(small):
    small.pop("out")
    config = config_with(
        noback.RunConfig(steps=7, rule=noback.Sgd(lr=1e-4, schedule="linear")), {"lr": 1e-5, "seed": 3}
    )
    assert (config.steps, config.seed, config.rule) == (7, 3, noback.Sgd(lr=1e-5, schedule="linear"))


@pytest.mark.parametrize(
    ("name", "word", "made"),
    [
        ("adapter", "lora", noback.Lora()),
        ("objective", "accuracy", noback.Accuracy()),
        ("objective", "reward:module:function", noback.Reward("module:function")),
        ("estimator", "one_sided", noback.OneSided()),
        ("rule", "momentum", noback.Momentum()),
        ("noise", "rademacher", noback.Rademacher()),
        ("engine", "local", noback.LocalEngine()),
        ("adapter", {"kind": "lora", "rank": 2}, noback.Lora(rank=2)),
    ],
)
def test_a_method_goes_by_its_name_in_keywords_and_in_a_configuration(name, word, made):
    assert getattr(noback.RunConfig(**{name: word}), name) == made
    assert getattr(config_with(None, {name: word}), name) == made


@pytest.mark.parametrize(
    ("name", "word"),
    [("adapter", "lorra"), ("objective", "acuracy"), ("estimator", "one"), ("rule", "lion"), ("noise", "uniform"),
     ("engine", "vlm"), ("steps", "many"), ("lr", "fast"), ("dtype", "float8"), ("schedule", "linaer"), ("lr", "-1")],
)  # fmt: skip
def test_a_wrong_word_is_refused_with_the_command_lines_sentence(name, word, noback_cli):
    code, _, err = noback_cli("train", f"--{name}={word}")
    with pytest.raises(noback.InputError) as refused:
        noback.train(**{name: word})
    assert (code, err) == (2, f"noback: {refused.value}\n")
    if name in {item.name for item in dataclasses.fields(noback.RunConfig)} - {"steps"}:
        with pytest.raises(noback.InputError) as refused_too:
            noback.RunConfig(**{name: word})
        assert str(refused_too.value) == str(refused.value)


def test_an_unknown_keyword_is_refused_with_the_nearest():
    with pytest.raises(noback.InputError, match="unknown option 'leraning_rate'"):
        noback.train(leraning_rate=1)
    with pytest.raises(noback.InputError, match="unknown option 'step'; did you mean 'steps'"):
        noback.train(step=1)


def test_the_typed_keywords_are_the_flags_of_the_command_line():
    flags = {flag[2:].replace("-", "_") for flag in config_flags()} | {"adapt_ties"}
    usual = {flag[2:].replace("-", "_") for flag in FLAGS} | {"adapt_ties"}
    assert usual <= get_type_hints(MeasureOptions).keys() <= flags
    assert get_type_hints(TrainOptions).keys() == get_type_hints(MeasureOptions).keys() - {"data", "model"}
    assert get_type_hints(ConfigOptions).keys() == {item.name for item in dataclasses.fields(noback.RunConfig)}


def test_a_result_tells_the_course_of_the_run(small):
    told = []
    result = noback.train(steps=4, callback=told.append, **small)
    history = result.history
    assert [one.step for one in history.steps] == [1, 2, 3, 4]
    assert [one.step for one in history.evaluations] == [0, 2, 4]
    steps = [event for event in told if event.kind == "step"]
    assert [(one.step, one.steps) for one in steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [one.loss for one in steps] == pytest.approx([one.loss for one in history.steps])
    evaluated = [(one.step, one.accuracy, one.score) for one in told if one.kind == "evaluation"]
    assert evaluated == [(one.step, one.accuracy, one.score) for one in history.evaluations]
    assert all(one.seconds >= 0 for one in history.evaluations)


def test_a_callback_that_stops_gives_a_result_and_the_run_goes_on_to_the_same_bits(small, tmp_path):
    def stop_at_three(event: noback.Event) -> None:
        if event.kind == "step" and event.step == 3:
            event.stop()

    whole = noback.train(steps=6, **{**small, "out": tmp_path / "whole"})
    result = noback.train(steps=6, callback=stop_at_three, **small)
    assert (result.stopped, result.steps, whole.stopped) == (True, 3, False)
    assert result.best is not None
    assert len(result.history.steps) == 3
    assert noback.resume(result.run).final_weights == whole.final_weights


def test_another_thread_stops_a_run(small):
    asked, going = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (going.wait(60), asked.set()))
    thread.start()
    result = noback.train(steps=100_000, stop=asked.is_set, callback=lambda _: going.set(), **small)
    thread.join()
    assert result.stopped
    assert 0 < result.steps < 100_000


def test_a_run_that_is_stopped_before_its_first_step_has_a_result(small):
    result = noback.train(steps=2, stop=lambda: True, **small)
    assert (result.stopped, result.steps, result.forwards, result.best_step) == (True, 0, 0, 0)
    assert not noback.resume(result.run).stopped


def test_a_stopped_run_is_not_reported_as_finished(small, noback_cli):
    result = noback.train(steps=4, callback=lambda event: event.step and event.stop(), **small)
    code, out, err = noback_cli("report", result.run, "--json")
    assert (code, json.loads(out)["states"]) == (0, ["stopped"]), err


def test_an_exception_in_a_callback_leaves_a_run_that_can_go_on(small):
    def fail(event: noback.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        noback.train(steps=2, callback=fail, **small)
    assert noback.resume(small["out"]).steps == 2


ROWS = [{"sentence": f"{text} {number}", "label": gold} for number in range(6) for gold, texts in
        ((1, POSITIVE), (0, NEGATIVE)) for text in texts]  # fmt: skip
SPLITS = {"train": ROWS[:24], "validation": ROWS[24:32], "test": ROWS[32:]}


def as_rows(kind: str):
    """Splits in one of the forms that people have."""
    if kind == "rows":
        return SPLITS
    if kind == "frames":
        pandas = pytest.importorskip("pandas")
        return {name: pandas.DataFrame(rows) for name, rows in SPLITS.items()}
    datasets = pytest.importorskip("datasets")
    return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in SPLITS.items()})


@pytest.fixture
def in_memory(small):
    """The keywords of a run of a moment without its data."""
    return {key: value for key, value in small.items() if key != "data"}


@pytest.mark.parametrize("kind", ["rows", "frames", "datasets"])
def test_rows_in_memory_train_as_the_same_rows_in_files_do(kind, in_memory, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for name, rows in SPLITS.items():
        write_rows(folder / f"{name}.jsonl", rows)
    result = noback.train(data=as_rows(kind), steps=2, **in_memory)
    twin = noback.train(data=folder, steps=2, **{**in_memory, "out": tmp_path / "twin"})
    assert result.final_weights == twin.final_weights
    assert read_header(Path(result.run) / "journal")["data"] == read_header(Path(twin.run) / "journal")["data"]


def test_the_data_and_the_model_of_a_configuration_count_where_no_keyword_names_others(small, tiny_folder, data_folder):
    config = noback.RunConfig(model=str(tiny_folder), data=str(data_folder), task="sst2", steps=1, **SMALL)
    result = noback.train(config, small["out"])
    assert f'data = "{data_folder}"' in (Path(result.run) / "run.toml").read_text()


def test_one_list_of_rows_is_split_as_one_file_is(in_memory, tmp_path):
    result = noback.train(data=ROWS, steps=2, **in_memory)
    twin = noback.train(data=write_rows(tmp_path / "rows.jsonl", ROWS), steps=2, **{**in_memory, "out": tmp_path / "b"})
    assert result.final_weights == twin.final_weights


def test_a_run_keeps_the_rows_that_it_was_given_and_goes_on_wherever_its_folder_is(in_memory, tmp_path, noback_cli):
    rows = list(ROWS)
    result = noback.train(data=rows, steps=4, callback=lambda event: event.step == 2 and event.stop(), **in_memory)
    rows.clear()
    moved = tmp_path / "moved"
    Path(result.run).rename(moved)
    assert noback.resume(moved).steps == 4
    run, _ = noback.tuned_run(moved)
    score, notes = noback.evaluate(run)
    assert score.examples == 8
    assert not [note for note in notes if "changed" in note or "trained on" in note]
    assert noback_cli("evaluate", moved)[0] == 0


def test_rows_of_a_dataset_have_their_labels_by_name_where_the_task_knows_the_names():
    datasets = pytest.importorskip("datasets")
    names = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_list(ROWS[:2], features=names)
    spec = spec_of({"name": "x", "template": "*cls**sent_0*_*mask*.*sep+*", "words": {"no": "bad", "yes": "good"},
                    "sentences": ["sentence"]}, "x.toml")  # fmt: skip
    (lines,) = data_files(table, spec).values()
    assert [json.loads(line)["label"] for line in lines.splitlines()] == ["yes", "yes"]


def test_values_that_json_has_not_become_plain_ones():
    numpy = pytest.importorskip("numpy")
    rows = [{"sentence": "a", "label": numpy.int64(1), "more": numpy.array([1.0, float("nan")]), "day": Path("x")}]
    (lines,) = data_files(rows, load_spec("sst2")).values()
    assert json.loads(lines) == {"sentence": "a", "label": 1, "more": [1.0, None], "day": "x"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "data holds no examples"),
        ([{"sentence": "a", "label": 7}], r"line 1 of data has the label '7', which is not in task 'sst2'"),
        ({"train": [{"text": "a", "label": 1}]}, r"data has no column 'sentence' \(it has: text, label\)"),
        ({"train": ROWS, "test": ["a"]}, r"row 1 of data\['test'\] is 'a'; expected a dict"),
        ({"sentence": ["a"], "label": [1]}, "data is a dict of 'sentence, label'; expected a list of rows"),
        (7, "data is 7; expected a list of rows"),
    ],
)
def test_wrong_rows_are_refused_by_a_sentence_about_what_was_given_and_leave_nothing(data, sentence, in_memory):
    with pytest.raises(noback.InputError, match=sentence):
        noback.train(data=data, steps=2, **in_memory)
    assert not in_memory["out"].exists()


def test_a_folder_of_ones_own_is_never_taken_for_a_run_nor_touched(in_memory):
    own = in_memory["out"] / "data"
    own.mkdir(parents=True)
    (own / "mine.txt").write_text("mine")
    with pytest.raises(noback.InputError, match="exists; choose another"):
        noback.train(data=ROWS, steps=1, **in_memory)
    assert (own / "mine.txt").read_text() == "mine"


def load(folder):
    """What people have in hand: a model and a tokenizer."""
    import transformers

    return transformers.AutoModelForMaskedLM.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("adapter", ["full", "lora", "prefix"])
def test_a_loaded_model_trains_to_the_bits_of_the_same_model_by_name_and_ends_with_the_best_weights(
    adapter, small, tmp_path
):
    model, tokenizer = load(small["model"])
    named = noback.train(steps=4, adapter=adapter, lr=1e-2, **{**small, "out": tmp_path / "named"})
    result = noback.train(steps=4, adapter=adapter, lr=1e-2, **{**small, "model": model, "tokenizer": tokenizer})
    assert (result.final_weights, result.weights) == (named.final_weights, named.weights)
    run, step = noback.tuned_run(result.run)
    assert (step, run.weights.digest()) == (result.best_step, result.weights)
    if adapter == "full":
        assert digest(floating(model)) == result.weights
        assert not model.training


def test_a_model_and_its_tokenizer_may_come_as_a_pair_and_the_run_names_where_they_came_from(small):
    result = noback.train(steps=1, **{**small, "model": load(small["model"])})
    assert f'model = "{small["model"]}"' in (Path(result.run) / "run.toml").read_text()
    assert noback.resume(result.run).final_weights == result.final_weights


def test_a_model_of_no_name_is_asked_for_by_a_sentence_and_given_by_its_folder(small, tmp_path, noback_cli):
    model, tokenizer = load(small["model"])
    model.config._name_or_path = ""
    model.name_or_path = ""
    result = noback.train(steps=2, stop=lambda: True, **{**small, "model": model, "tokenizer": tokenizer})
    code, _, err = noback_cli("predict", result.run, "a film")
    assert (code, "name its folder with --model" in err) == (2, True)
    with pytest.raises(noback.InputError, match="given in memory and has no name"):
        noback.resume(result.run)
    assert noback.resume(result.run, model=small["model"]).steps == 2
    assert noback_cli("predict", result.run, "a film", "--model", small["model"])[0] == 0


def test_a_loaded_model_that_differs_from_its_file_is_named_as_another(small):
    model, tokenizer = load(small["model"])
    next(model.parameters()).data.add_(0.5)
    result = noback.train(steps=1, **{**small, "model": model, "tokenizer": tokenizer})
    with pytest.raises(noback.DamagedError, match=r"other base weights.*name the model it was made from with --model"):
        noback.tuned_run(result.run)


def test_what_does_not_go_with_a_loaded_model_is_refused_by_a_sentence(small, tiny_causal_folder):
    import transformers

    model, tokenizer = load(small["model"])
    for given, sentence in [
        ({"model": model}, "needs its tokenizer and none was given"),
        ({"model": model, "tokenizer": 3}, "a int was given"),
        ({"model": 3}, "model is a int; expected a transformers model"),
        ({"tokenizer": tokenizer}, "tokenizer goes with a loaded model"),
        ({"model": (model, tokenizer), "dtype": "bfloat16"}, "dtype is 'bfloat16' and the loaded model's is float32"),
        ({"model": (model, tokenizer), "device": "cuda"}, "device is 'cuda' and the loaded model's is cpu"),
        ({"model": (model, tokenizer), "adapter": "head"}, "adapter 'head' opens a model with a fresh head"),
        ({"model": (model, tokenizer), "quantise": "int8"}, "quantise is for a model that is opened by its name"),
        ({"model": (transformers.AutoModelForCausalLM.from_pretrained(tiny_causal_folder), tokenizer)}, "a causal LM"),
    ]:
        with pytest.raises(noback.InputError, match=sentence):
            noback.train(steps=1, **{**small, **given})
    with pytest.raises(noback.InputError, match="weights are 'float16'; expected all in float32"):
        noback.train(steps=1, **{**small, "model": (model.half(), tokenizer)})
    assert not small["out"].exists()


def test_compare_is_a_function_that_does_what_the_command_does(in_memory, data_folder):
    objectives = ["cross_entropy", "accuracy"]
    table = noback.compare(objectives=objectives, eps=[1e-3, 1e-2], steps=2, data=data_folder, **in_memory)
    assert [(row["objective"], row["eps"]) for row in table["rows"]] == [
        ("label-word cross-entropy", 1e-3), ("label-word cross-entropy", 1e-2),
        ("label-word accuracy", 1e-3), ("label-word accuracy", 1e-2),
    ]  # fmt: skip
    assert get_type_hints(Comparison).keys() <= table.keys()
    assert all(get_type_hints(ComparedRow).keys() <= row.keys() for row in table["rows"])
    assert noback.report(table["folder"]).kind == "comparison"


def test_epsilon_is_a_function_that_does_what_the_command_does(small):
    small.pop("eval_every")
    table = noback.epsilon(at=[1e-3, 1e-2], objectives=["cross_entropy"], probes=2, **small)
    assert get_type_hints(EpsTable).keys() <= table.keys()
    assert [get_type_hints(EpsRow).keys() <= row.keys() for row in table["rows"]] == [True, True]
    assert [get_type_hints(EpsAdvice).keys() <= one.keys() for one in table["recommendations"]] == [True]


def test_baseline_is_a_function_that_does_what_the_command_does(small, noback_cli):
    small.pop("out")
    found = noback.baseline("zero-shot", **small)
    flags = ["--model", small["model"], "--task", "sst2", "--data", small["data"], "--test-limit", 8]
    code, out, _ = noback_cli("baseline", "zero-shot", "--json", *flags)
    assert (code, json.loads(out)["best"]) == (0, found.best)
    with pytest.raises(noback.InputError, match="method is 'zeroshot'; expected one of"):
        noback.baseline("zeroshot")


def test_report_is_a_function_that_does_what_the_command_does(small, tmp_path):
    result = noback.train(steps=2, **small)
    made = noback.report(result.run)
    assert made.path == Path(result.run) / "report.html"
    assert (made.path.read_text(), made.states, made.verdicts) == (made.text, ("finished",), (result.verdict,))
    summary = noback.report(result.run, markdown=True)
    assert (summary.path, summary.text.startswith("#")) == (None, True)
    with pytest.raises(noback.InputError, match="no run to report"):
        noback.report()


def test_the_functions_keep_their_names_when_the_command_line_is_imported():
    code = (
        "import noback, noback.cli.main, noback.comparing, noback.measuring_eps, noback.reporting, noback.baselines\n"
        "assert all(callable(getattr(noback, name)) for name in ('compare', 'epsilon', 'report', 'baseline'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("learning_rate", "unknown option 'learning_rate': here it is lr"),
        ("batch_size", "unknown option 'batch_size': here it is batch"),
        ("eval_steps", "unknown option 'eval_steps': here it is eval_every"),
        ("use_lora", "unknown option 'use_lora': here it is adapter=\"lora\""),
        ("lora_rank", "unknown option 'lora_rank': here it is adapter=noback.Lora(rank=...)"),
        ("epochs", "unknown option 'epochs': noback counts steps, not epochs"),
        ("stepz", "unknown option 'stepz'; did you mean 'steps'?"),
    ],
)
def test_a_keyword_that_has_another_name_here_is_answered_with_it(keyword, said):
    with pytest.raises(InputError) as refused:
        noback.train(**{keyword: 3})
    assert str(refused.value).startswith(said)


def test_a_callback_that_is_no_function_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(InputError, match="callback is 5; expected a function"):
        noback.train(out=tmp_path / "run", callback=5)
    assert not (tmp_path / "run").exists()


def test_a_runs_folder_is_evaluated_and_exported_at_its_best_weights(small, tmp_path):
    result = noback.train(**{**small, "steps": 2})
    score, _ = noback.evaluate(result.run)
    assert score.accuracy == pytest.approx(result.best)
    noback.export(result.run, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_words_may_be_given_by_the_whole_numbers_that_are_the_labels():
    by_number = RunConfig(template="{text} {mask}", words={0: "bad", 1: "good"})
    assert by_number == RunConfig(template="{text} {mask}", words="0=bad,1=good")
    with pytest.raises(InputError, match="words hold True as a label; expected a text"):
        RunConfig(words={True: "good"})


def test_a_folder_of_runs_in_place_of_a_run_is_answered_with_their_names(small, tmp_path):
    noback.train(**{**small, "steps": 1, "out": tmp_path / "runs" / "one"})
    with pytest.raises(InputError, match=r"is no run folder and holds 1 of them; name one, such as '.*one'"):
        noback.predict(tmp_path / "runs", "a film")

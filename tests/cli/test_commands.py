"""What the commands say and write: one run, trained once, looked at from every side."""

import contextlib
import io
import json
import shutil

import pytest
import torch
import transformers

from noback import MeZO, OneSided
from noback.cli.main import COMMANDS, main
from noback.journal import read_journal
from noback.tasks import task_names
from noback.usual import USUAL
from tests.conftest import NEGATIVE, POSITIVE, tiny_model, write_rows

STEPS = 6
ROWS = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder):
    """`noback train --json`: the run's folder and what was printed on stdout."""
    folder = tmp_path_factory.mktemp("trained")
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", ROWS)
    run = folder / "run"
    flags = ["--model", tiny_folder, "--data", folder, "--task", "reviews", "--steps", STEPS, "--lr", "1e-2"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["train", *map(str, flags), "--out", str(run), "--json"]) == 0
    return run, out.getvalue()


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


@pytest.fixture(scope="module")
def result(trained):
    return json.loads(trained[1])


@pytest.fixture
def answer(noback):
    """Runs a command with --json and returns the object it prints."""

    def call(*arguments):
        code, out, err = noback(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


def tensors_in(folder):
    return transformers.AutoModelForMaskedLM.from_pretrained(folder).state_dict()


def assert_equal_tensors(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# train


def test_train_prints_exactly_one_json_object(trained):
    lines = trained[1].splitlines()
    assert len(lines) == 1
    assert isinstance(json.loads(lines[0]), dict)


def test_train_says_all_that_a_script_needs(result):
    expected = {"run", "task", "zero_shot", "final", "best", "steps", "forwards", "seconds", "journal_bytes", "weights"}
    assert expected <= result.keys()


def test_train_names_its_run_and_task(result, run):
    assert (result["run"], result["task"]) == (str(run), "reviews")


def test_train_counts_two_forwards_a_step(result):
    assert (result["steps"], result["forwards"]) == (STEPS, 2 * STEPS)


@pytest.mark.parametrize("key", ["zero_shot", "final", "best"])
def test_train_gives_accuracies_as_shares(key, result):
    assert result[key] * len(ROWS) in range(len(ROWS) + 1)


def test_train_gives_the_size_of_its_journal(result, run):
    assert result["journal_bytes"] == (run / "journal").stat().st_size


def test_train_for_people_ends_with_a_command_to_try(noback, tiny_folder, data_folder, tmp_path):
    out = tmp_path / "run"
    flags = ["--model", tiny_folder, "--data", data_folder, "--steps", 1, "--out", out]
    assert f"try: noback predict {out}" in noback("train", *flags)[1]


def test_a_flag_wins_over_the_configuration_file(answer, run, tmp_path):
    again = answer("train", "--config", run / "run.toml", "--steps", 1, "--out", tmp_path / "again")
    assert again["steps"] == 1


def test_a_runs_own_configuration_trains_the_same_weights_again(answer, run, result, tmp_path):
    again = answer("train", "--config", run / "run.toml", "--out", tmp_path / "again")
    assert again["final_weights"] == result["final_weights"]


def test_set_reaches_any_option_by_its_name(answer, run, tmp_path):
    flags = ["--config", run / "run.toml", "--set", "steps=1", "--set", "estimator.directions=3"]
    assert answer("train", *flags, "--out", tmp_path / "again")["forwards"] == 6


def test_without_out_a_run_is_numbered(answer, tiny_folder, data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["train", "--model", tiny_folder, "--data", data_folder, "--steps", 1]
    assert [answer(*flags)["run"] for _ in range(2)] == ["runs/reviews-001", "runs/reviews-002"]


# resume


def test_resume_of_a_finished_run_gives_its_result_again(answer, run, result, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    again = answer("resume", copy)
    same = ("zero_shot", "final", "best", "best_step", "steps", "journal_bytes", "weights", "final_weights")
    assert {key: again[key] for key in same} == {key: result[key] for key in same}


# evaluate


def test_evaluate_says_accuracy_examples_and_weights(answer, run):
    assert {"accuracy", "examples", "weights"} <= answer("evaluate", run).keys()


def test_evaluate_uses_the_weights_that_train_ended_with(answer, run, result):
    assert answer("evaluate", run)["weights"] == result["weights"]


@pytest.mark.parametrize(("at", "key"), [("best", "best"), ("final", "final"), ("base", "zero_shot")])
def test_evaluate_finds_the_accuracy_that_train_gave(at, key, answer, run, result):
    assert answer("evaluate", run, "--at", at)["accuracy"] == result[key]


def test_evaluate_at_the_last_step_is_evaluate_at_final(answer, run):
    assert answer("evaluate", run, "--at", STEPS) == answer("evaluate", run, "--at", "final")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_evaluate_answers_the_whole_of_a_split(split, answer, run):
    assert answer("evaluate", run, "--split", split)["examples"] == len(ROWS)


def test_evaluate_takes_other_data_under_other_columns(answer, run, tmp_path):
    rows = [{"text": row["sentence"], "stars": row["label"]} for row in ROWS[2:6]]
    for split in ("train", "test"):
        write_rows(tmp_path / f"{split}.jsonl", rows)
    assert answer("evaluate", run, "--data", tmp_path, "--columns", "text,stars")["examples"] == 4


@pytest.mark.parametrize(("file", "split"), [("test", "test"), ("dev", "validation")])
def test_evaluate_answers_the_whole_of_a_split_that_is_alone_in_its_folder(file, split, answer, run, tmp_path):
    write_rows(tmp_path / f"{file}.jsonl", ROWS)
    assert answer("evaluate", run, "--data", tmp_path, "--split", split)["examples"] == len(ROWS)


def test_evaluate_tells_people_the_accuracy(noback, run, result):
    code, out, _ = noback("evaluate", run)
    assert code == 0
    assert out.startswith(f"accuracy {result['best']:.1%} on {len(ROWS)} examples (test)")


# journal


def test_journal_shows_its_header(answer, run):
    header = answer("journal", run)["header"]
    assert {"config", "base", "directions", "versions"} <= header.keys()


def test_journal_shows_every_step_with_its_slopes(answer, run):
    records = answer("journal", run)["records"]
    assert [(record["step"], len(record["slopes"])) for record in records] == [(step, 1) for step in range(STEPS)]


def test_journal_counts_its_bytes(answer, run, result):
    assert answer("journal", run)["bytes"] == result["journal_bytes"]


def test_journal_is_the_same_for_a_folder_and_for_its_file(answer, run):
    assert answer("journal", run) == answer("journal", run / "journal")


def test_journal_tells_people_a_line_a_step(noback, run):
    lines = noback("journal", run)[1].splitlines()
    assert sum(line.startswith("step ") for line in lines) == STEPS


def test_journal_tells_people_what_else_a_record_keeps(noback, tmp_path):
    model = tiny_model("bert", vocab=10)
    optimizer = MeZO(model, lr=1e-3, estimator=OneSided(directions=2), journal=tmp_path / "journal")
    optimizer.step(lambda: sum(float(tensor.sum()) for tensor in model.parameters()))
    (line,) = [line for line in noback("journal", tmp_path / "journal")[1].splitlines() if line.startswith("step ")]
    (record,) = read_journal(tmp_path / "journal").steps
    assert record.figures[0] > 0
    assert line.endswith(f"  spread {record.figures[0]:.4g}")


def test_the_journal_of_the_optimizer_ends_in_no_traceback(noback, tmp_path):
    MeZO(tiny_model("bert", vocab=10), lr=1e-3, journal=tmp_path / "journal")
    code, _, _ = noback("journal", tmp_path / "journal")
    assert code in {0, 2}


# predict


def test_probabilities_sum_to_one(answer, run):
    predictions = answer("predict", run, "a lovely little film", "two hours I will not get back")["predictions"]
    assert [sum(one["probabilities"].values()) for one in predictions] == pytest.approx([1.0, 1.0])


def test_the_label_is_the_most_probable(answer, run):
    (prediction,) = answer("predict", run, "a lovely little film")["predictions"]
    assert prediction["label"] == max(prediction["probabilities"], key=prediction["probabilities"].get)


def test_predictions_come_in_the_order_of_the_texts(answer, run):
    texts = ["dull", "a lovely little film that goes on and on", "fine"]
    assert [one["text"] for one in answer("predict", run, *texts)["predictions"]] == texts


def test_a_prediction_does_not_depend_on_its_neighbours(answer, run):
    text = "a lovely little film"
    alone = answer("predict", run, text)["predictions"][0]["probabilities"]
    among = answer("predict", run, "dull", text, "two hours I will not get back")["predictions"][1]["probabilities"]
    assert among == pytest.approx(alone, abs=1e-5)


def test_predict_and_evaluate_agree(answer, run, result):
    predictions = answer("predict", run, *(row["sentence"] for row in ROWS))["predictions"]
    right = sum(one["label"] == str(row["label"]) for one, row in zip(predictions, ROWS, strict=True))
    assert right / len(ROWS) == result["best"]


def test_predict_tells_people_the_label_words(noback, run):
    out = noback("predict", run, "a lovely little film")[1]
    assert "(great)" in out
    assert "(terrible)" in out


# export and replay


@pytest.mark.parametrize("at", ["best", "final", "base", "3"])
def test_export_and_replay_write_equal_tensors(at, answer, run, tmp_path):
    for command in ("export", "replay"):
        answer(command, run, tmp_path / command, "--at", at)
    assert_equal_tensors(tensors_in(tmp_path / "export"), tensors_in(tmp_path / "replay"))


def test_an_exported_base_is_the_base_model(answer, run, tiny_folder, tmp_path):
    answer("export", run, tmp_path / "new", "--at", "base")
    assert_equal_tensors(tensors_in(tmp_path / "new"), tensors_in(tiny_folder))


def test_an_export_differs_from_the_base(answer, run, tiny_folder, tmp_path):
    answer("export", run, tmp_path / "new", "--at", "final")
    one, other = tensors_in(tmp_path / "new"), tensors_in(tiny_folder)
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].is_floating_point())


def test_an_export_brings_its_tokenizer(answer, run, tokenizer, tmp_path):
    answer("export", run, tmp_path / "new")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert exported("a lovely little film")["input_ids"] == tokenizer("a lovely little film")["input_ids"]


def test_an_exported_model_can_be_trained_on(answer, run, data_folder, tmp_path):
    answer("export", run, tmp_path / "new", "--at", "final")
    flags = ["--model", tmp_path / "new", "--data", data_folder, "--steps", 1, "--out", tmp_path / "again"]
    assert answer("train", *flags)["zero_shot"] == answer("evaluate", run, "--at", "final")["accuracy"]


def test_an_empty_folder_may_be_exported_into(answer, run, tmp_path):
    (tmp_path / "new").mkdir()
    assert answer("export", run, tmp_path / "new")["folder"] == str(tmp_path / "new")


@pytest.mark.parametrize("command", ["export", "replay"])
def test_written_weights_have_the_digest_that_train_gave(command, answer, run, result, tmp_path):
    assert answer(command, run, tmp_path / "new")["weights"] == result["weights"]


@pytest.mark.parametrize("at", ["best", "final"])
def test_the_journal_file_alone_replays_to_the_same_digest(at, answer, run, result, tmp_path):
    digests = {"best": result["weights"], "final": result["final_weights"]}
    journal = tmp_path / "elsewhere.journal"
    shutil.copyfile(run / "journal", journal)
    assert answer("replay", journal, tmp_path / "new", "--at", at)["weights"] == digests[at]


def test_a_journal_replays_from_a_base_that_has_moved(answer, run, result, tiny_folder, tmp_path):
    base = shutil.copytree(tiny_folder, tmp_path / "moved")
    assert answer("replay", run, tmp_path / "new", "--model", base)["weights"] == result["weights"]


# tasks


def test_tasks_lists_every_task_with_what_it_is_about(noback):
    code, out, _ = noback("tasks")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == task_names()


@pytest.mark.parametrize("name", task_names())
def test_tasks_shows_the_template_and_words_of_one(name, answer):
    (task,) = answer("tasks", name)["tasks"]
    assert task["name"] == name
    causal = "prompt" in task
    assert task["template"].count("*mask*") == (0 if causal else 1)
    assert len(task["words"]) > 1 or causal
    assert task["columns"][-1] == task["label"]


def test_tasks_shows_people_what_a_causal_task_asks(noback):
    out = noback("tasks", "copa")[1]
    assert "'{premise:.} {question}'" in out
    assert "choice1, choice2" in out
    assert "at most 50 tokens" in noback("tasks", "squad")[1]


def test_tasks_shows_people_a_prompt(noback):
    assert "{sentence} It was<mask>." in noback("tasks", "sst2")[1]


def test_tasks_shows_people_a_prompt_with_whole_column_names(noback):
    out = noback("tasks", "rte")[1]
    assert "{sentence1}" in out
    assert "{sentence2}" in out


# help


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command(capsys):
    text = help_of(capsys)
    assert all(f"\n    {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_an_example(command, capsys):
    assert f"\n  noback {command}" in help_of(capsys, command)


def test_help_of_train_gives_the_defaults(capsys):
    text = help_of(capsys, "train")
    for row in USUAL:  # the help names what is usual
        if row.estimator != "backprop":
            assert all(f"{number:g}" in text for number in (row.lr, row.eps) if number is not None)
    assert "training steps (default 60)" in text


def test_what_a_task_file_says_does_not_steer_the_terminal(noback, tmp_path):
    task = tmp_path / "own.toml"
    task.write_text(
        'name = "own"\nabout = "\\u001b[31mred\\u202e"\nsentences = ["sentence"]\nwords = {a = "bad", b = "good"}\n'
        'template = "*cls**sent_0*_It_was*mask*.*sep+*"\n'
    )
    code, out, _ = noback("tasks", task)
    assert (code, out.splitlines()[0]) == (0, r"own (version 1): \x1b[31mred\u202e")
    code, out, _ = noback("tasks", task, "--json")
    assert json.loads(out)["tasks"][0]["about"] == "\x1b[31mred\u202e"

"""Bad input at the command line: exit code 2, one sentence on stderr, nothing on stdout and no run folder."""

import gzip
import os
import shutil

import pytest
import tomli_w
import transformers

from noback import MeZO
from noback.cli.main import main
from tests.conftest import NEGATIVE, POSITIVE, tiny_model, write_rows

OWN = {
    "name": "own",
    "template": "*cls**sent_0*_It_was*mask*.*sep+*",
    "words": {"0": "terrible", "1": "great"},
    "sentences": ["sentence"],
}
PAIR = {**OWN, "template": "*cls**sent_0**mask*,*+sentl_1**sep+*", "sentences": ["sentence", "sentence"]}


@pytest.fixture
def own_task(tmp_path):
    """Writes a task file: the sound one, with the given entries changed."""

    def write(**entries):
        file = tmp_path / "own.toml"
        file.write_text(tomli_w.dumps({**OWN, **entries}))
        return file

    return write


@pytest.fixture(scope="module")
def pair_run(tmp_path_factory, tiny_folder):
    """A finished run of a task of two sentences."""
    folder = tmp_path_factory.mktemp("pair")
    task = folder / "pair.toml"
    task.write_text(tomli_w.dumps(PAIR))
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    run = folder / "run"
    flags = ["--model", tiny_folder, "--data", folder, "--task", task, "--steps", 1, "--out", run]
    assert main(["train", *map(str, flags)]) == 0
    return run


# Names


def test_an_unknown_task_comes_with_the_nearest_name(train):
    assert "unknown task 'reviws'; did you mean 'reviews'?" in train(task="reviws")


def test_a_task_file_that_does_not_exist_is_named(train, tmp_path):
    assert "nowhere.toml' does not exist" in train(task=tmp_path / "nowhere.toml")


def test_a_model_that_does_not_exist_is_named(train):
    assert "model folder './nowhere' does not exist" in train(model="./nowhere")


def test_an_unknown_model_comes_with_the_embedded_ones(train):
    assert "embedded models: mini" in train(model="./nowhere")


def test_data_that_does_not_exist_is_named(train, tmp_path):
    assert f"data '{tmp_path / 'nowhere.csv'}' does not exist" in train(data=tmp_path / "nowhere.csv")


def test_a_task_without_data_says_which_columns_it_needs(refused, tiny_folder, tmp_path):
    sentence = refused("train", "--model", tiny_folder, "--task", "sst2", "--out", tmp_path / "run")
    assert "task 'sst2' needs data: --data FILE or FOLDER with the columns sentence, label" in sentence


# Models that cannot serve


@pytest.fixture
def model_copy(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


def test_a_damaged_model_file_is_refused(train, model_copy):
    (model_copy / "model.safetensors").write_bytes(b"no tensors here" * 100)
    assert "cannot be opened" in train(model=model_copy)


def test_a_folder_without_weights_is_refused(train, model_copy):
    (model_copy / "model.safetensors").unlink()
    assert "cannot be opened" in train(model=model_copy)


def test_a_folder_without_a_model_is_refused(train, data_folder):
    assert "cannot be opened" in train(model=data_folder)


def test_a_checkpoint_without_a_head_is_refused(train, tokenizer, tmp_path):
    """Its head would be random at every opening, and the journal could never be replayed."""
    folder = tmp_path / "model"
    tiny_model("roberta").roberta.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert "head" in train(model=folder)


def test_a_model_that_is_no_masked_lm_is_refused(train, tokenizer, tmp_path):
    folder = tmp_path / "model"
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, n_positions=64, vocab_size=300, bos_token_id=0, eos_token_id=0
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert "is a causal LM (GPT2LMHeadModel) and the task is for masked ones" in train(model=folder)


# Data


def test_a_missing_column_comes_with_the_columns_there_are(train, tmp_path):
    file = write_rows(tmp_path / "a.jsonl", [{"text": "clever", "stars": 1}])
    assert "has no column 'sentence' (it has: text, stars)" in train(data=file)


def test_columns_that_are_too_few_are_counted(train):
    assert "columns 'text' names 1 columns; task 'reviews' needs 1 for its sentences" in train("--columns", "text")


def test_a_label_that_is_not_in_the_task_is_named(train, tmp_path):
    file = write_rows(tmp_path / "a.jsonl", [{"sentence": "clever", "label": "positive"}])
    assert "has the label 'positive', which is not in task 'reviews' (its labels: 0, 1)" in train(data=file)


def test_a_file_without_examples_is_refused(train, tmp_path):
    assert "a.jsonl' holds no examples" in train(data=write_rows(tmp_path / "a.jsonl", []))


def test_a_folder_without_data_is_refused(train, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "has no split file" in train(data=folder)


def test_data_of_one_label_is_refused(train, data_folder):
    write_rows(data_folder / "train.jsonl", [{"sentence": text, "label": 1} for text in POSITIVE])
    assert "the train set holds only the label '1'" in train()


def test_more_shots_than_examples_are_refused(train):
    assert "label '0' has 4 examples in train" in train("--shots", 5)


def test_a_damaged_gzip_file_is_refused(train, tmp_path):
    file = tmp_path / "a.jsonl.gz"
    packed = bytearray(gzip.compress(b'{"sentence": "clever", "label": 1}\n' * 20))
    packed[10] ^= 0x55
    file.write_bytes(packed)
    assert "cannot be read" in train(data=file)


def test_a_column_name_with_a_line_break_stays_in_one_line(train, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('"the\ntext",label\nclever,1\n')
    assert "has no column 'sentence'" in train(data=file)


@pytest.mark.parametrize(
    ("columns", "said"),
    [("text,text", "names 'text' twice"), (",label", "has an empty name"), ("text, ", "empty name")],
)
def test_columns_that_are_one_or_have_no_name_are_refused(columns, said, train):
    assert said in train("--columns", columns)


def test_a_pipe_for_data_is_refused_and_not_waited_for(train, tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    assert "a.csv' is no regular file" in train(data=tmp_path / "a.csv")


# Tasks of one's own


def test_a_column_of_a_task_needs_a_name(train, own_task):
    assert "names a column without a name" in train(task=own_task(sentences=[""]))


@pytest.mark.parametrize(
    "template", [f"*sent_{'9' * 5000}**mask*", "*sent_\u0663**mask*"], ids=["digits", "other digits"]
)
def test_the_number_of_a_sentence_is_a_small_number(template, train, own_task):
    assert "has an unknown directive" in train(task=own_task(template=template))


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000 + "]" * 5000, '"\\ud800"', "a.b"])
def test_a_task_file_that_cannot_be_read_as_toml_is_refused(text, train, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(f"version = {text}")
    assert f"task file '{file}' is " in train(task=file)


def test_a_task_files_text_may_hold_no_nul(train, own_task):
    assert "which holds a NUL character" in train(task=own_task(words={"0": "terri\0ble", "1": "great"}))


def test_a_task_files_limit_may_be_no_number_that_no_machine_counts_to(train, own_task):
    assert "max_length of task 'own' is" in train(task=own_task(max_length=10**400))


def test_a_label_word_of_several_tokens_is_refused_with_its_tokens(train, own_task):
    task = own_task(words={"0": "terrible", "1": "okayish"})
    assert "label word 'okayish' is 2 tokens for this tokenizer ('Ġokay' 'ish')" in train(task=task)


def test_a_label_word_that_is_no_text_is_refused(train, own_task):
    assert "words" in train(task=own_task(words={"0": "terrible", "1": 1}))


def test_an_unknown_directive_is_pointed_at(train, own_task):
    task = own_task(template="*cls**snt_0*_It_was*mask*.*sep+*")
    assert "unknown directive *snt_0* at character 7; did you mean 'sent_0'?" in train(task=task)


def test_a_prompt_that_cannot_fit_is_refused(train, own_task):
    assert "the prompt of task 'own' cannot fit" in train(task=own_task(max_length=5))


# Flags


@pytest.mark.parametrize("name", ["eps", "lr"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_eps_and_lr_must_be_above_zero(name, value, train):
    assert f"{name} is {float(value)}; expected a number above zero" in train(f"--{name}", value)


@pytest.mark.parametrize("name", ["eps", "lr"])
def test_eps_and_lr_must_be_numbers(name, train):
    assert f"{name} is 'abc'; expected a number" in train(f"--{name}", "abc")


@pytest.mark.parametrize("value", ["0", "-1"])
def test_steps_must_be_above_zero(value, train):
    assert f"steps is {value}; expected a whole number above zero" in train("--steps", value)


@pytest.mark.parametrize("value", ["1.5", "abc", "nan", ""])
def test_steps_must_be_a_whole_number(value, train):
    assert f"steps is {value!r}; expected a whole number" in train("--steps", value)


@pytest.mark.parametrize(
    ("flag", "value", "bound"),
    [
        ("--directions", 2**16 + 1, "65,536"),
        ("--directions", 2**64, "65,536"),
        ("--steps", 2**32, "4,294,967,295"),
        ("--batch", 2**63, "9,223,372,036,854,775,807"),
        ("--test-limit", 2**63, "9,223,372,036,854,775,807"),
        ("--shots", 10**30, "9,223,372,036,854,775,807"),
        ("--eval-every", 2**64, "9,223,372,036,854,775,807"),
        ("--demonstrations", 2**64, "9,223,372,036,854,775,807"),
        ("--health-every", 2**64, "9,223,372,036,854,775,807"),
    ],
)
def test_a_count_that_is_too_large_comes_with_its_bound(flag, value, bound, train):
    name = flag if flag == "--health-every" else flag[2:].replace("-", "_")
    assert f"{name} is {value}; expected a whole number above zero and at most {bound}" in train(flag, value)


def test_a_prefix_has_so_many_tokens_at_most(train):
    assert "adapter.tokens is 65537; expected a whole number above zero and at most 65,536" in train(
        "--adapter", "prefix", "--set", "adapter.tokens=65537"
    )


@pytest.mark.parametrize("estimator", ["two_sided", "one_sided", "curvature"])
def test_every_estimator_bounds_its_directions(estimator, train):
    assert "at most 65,536" in train("--estimator", estimator, "--directions", 70_000)


@pytest.mark.parametrize("flags", [("--steps", "9" * 5000), ("--set", f"steps={'9' * 5000}"), ("--set", "steps=[1]")])
def test_steps_that_are_no_number_are_refused_in_a_short_sentence(flags, train):
    sentence = train(*flags)
    assert "steps is " in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "1" + "0" * 400])
def test_a_number_that_no_float_holds_is_refused(value, train):
    assert "expected a number" in train("--set", f"rule.lr={value}")


@pytest.mark.parametrize("name", ["dtype", "rule.schedule", "adapter.kind"])
@pytest.mark.parametrize("value", ["[1]", "{a = 1}"])
def test_a_list_or_a_table_is_no_choice(name, value, train):
    assert f"{name} is " in (sentence := train("--set", f"{name}={value}"))
    assert "; expected a text" in sentence


def test_a_set_holds_one_value(train):
    assert "steps is '1\\nbatch = 2'; expected a whole number" in train("--set", "steps=1\nbatch = 2")


@pytest.mark.parametrize("value", ["\u00b2", "\u0663", "9" * 5000, "1.0", "+1", "0"])
def test_health_is_looked_at_every_so_many_steps(value, train):
    assert "; expected a whole number above zero" in train("--health-every", value)


def test_a_device_has_a_number_of_few_digits(train):
    assert "expected cpu, cuda or cuda:N" in train("--device", "cuda:" + "9" * 5000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = " + "9" * 5000, "own.toml' is not TOML: Exceeds the limit"),
        ("steps = " + "[" * 5000, "own.toml' is nested too deeply"),
        ("batch" + ".a" * 5000 + " = 1", "batch is a dict that is too large to show; expected a whole number"),
    ],
    ids=["digits", "lists", "tables"],
)
def test_a_configuration_with_numbers_or_levels_without_end_is_refused(text, said, train, tmp_path):
    (tmp_path / "own.toml").write_text(text)
    assert said in train("--config", tmp_path / "own.toml")


def test_a_configuration_that_is_a_pipe_is_refused_and_not_waited_for(train, tmp_path):
    os.mkfifo(tmp_path / "own.toml")
    assert "own.toml' is no regular file" in train("--config", tmp_path / "own.toml")


def test_a_name_in_a_configuration_may_hold_no_nul(train, tmp_path):
    (tmp_path / "own.toml").write_text('columns = "a\\u0000b"')
    assert "columns is 'a\\x00b', which holds a NUL character" in train("--config", tmp_path / "own.toml")


@pytest.mark.parametrize("flag", ["--columns", "--task", "--out", "--set"])
def test_bytes_on_the_command_line_that_are_no_utf8_are_refused(flag, refused):
    assert "an argument is 'caf\\udce9', which is no UTF-8" in refused("train", flag, "caf\udce9")


@pytest.mark.parametrize("command", ["journal", "report", "resume"])
def test_an_argument_with_a_nul_is_refused(command, refused):
    assert "which holds a NUL character" in refused(command, "a\0b")


def test_a_name_that_no_file_can_have_is_refused(train):
    assert "File name too long" in train(model="a" * 5000)


def test_a_sentence_does_not_steer_the_terminal(refused):
    assert r"--\x1b[31m\u202e" in refused("train", "--\x1b[31m\u202e")


def test_an_unknown_choice_comes_with_the_known_ones(train):
    assert "dtype is 'float8'; expected one of bfloat16, float32" in train("--dtype", "float8")


def test_an_unknown_flag_is_named(train):
    assert "--momentum is not an option: here it is --rule momentum" in train("--momentum", "0.9")


def test_an_unknown_key_of_set_comes_with_the_nearest(train):
    assert "unknown option 'stepz'; did you mean 'steps'?" in train("--set", "stepz=3")


def test_a_set_without_an_equals_sign_comes_with_an_example(train):
    assert "--set 'rule.lr' has no '='; expected KEY=VALUE, such as rule.lr=2e-5" in train("--set", "rule.lr")


def test_a_set_beneath_a_plain_value_is_refused(train):
    assert "'steps' is no table of options" in train("--set", "steps.more=1")


def test_a_value_of_set_of_the_wrong_type_is_refused(train):
    assert "rule.lr is 'fast'; expected a number" in train("--set", "rule.lr=fast")


def test_a_configuration_file_that_does_not_exist_is_named(train, tmp_path):
    assert "nowhere.toml' does not exist" in train("--config", tmp_path / "nowhere.toml")


def test_a_run_folder_that_exists_is_refused(refused, tiny_folder, data_folder, tmp_path):
    flags = ["--model", tiny_folder, "--data", data_folder, "--task", "reviews", "--steps", 2, "--out", tmp_path]
    assert f"run folder '{tmp_path}' exists; choose another with --out" in refused("train", *flags)


def test_a_run_folder_that_exists_is_left_as_it_was(refused, tiny_folder, data_folder, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    refused("train", "--model", tiny_folder, "--data", data_folder, "--steps", 2, "--out", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_command_comes_with_the_known_ones(refused):
    assert "choose from 'train', 'resume'" in refused("trian")


# Runs


@pytest.mark.parametrize("text", ["one sentence", "one\ttwo\tthree"])
def test_a_prediction_needs_as_many_sentences_as_the_task(text, refused, pair_run):
    count = len(text.split("\t"))
    assert f"has {count} sentences; task 'own' needs 2 (on the command line, parted by a tab)" in refused(
        "predict", pair_run, text
    )


def test_one_text_of_the_wrong_kind_refuses_them_all(refused, pair_run):
    assert "text 'alone' has 1 sentences" in refused("predict", pair_run, "one\ttwo", "alone")


@pytest.mark.parametrize("command", ["export", "replay"])
def test_a_folder_that_is_not_empty_is_not_written_into(command, refused, pair_run, data_folder):
    assert f"'{data_folder}' exists and is not empty" in refused(command, pair_run, data_folder)


@pytest.mark.parametrize("command", ["export", "replay"])
def test_a_file_is_not_overwritten(command, refused, pair_run, data_folder):
    assert "exists and is not empty" in refused(command, pair_run, data_folder / "train.jsonl")


@pytest.mark.parametrize("at", ["2", "-1", "first", "1.0", "", "\u00b2", "\u0661"])
@pytest.mark.parametrize("command", ["evaluate", "predict", "export", "replay"])
def test_a_step_out_of_range_comes_with_the_range(command, at, refused, pair_run, tmp_path):
    more = {"predict": ["one\ttwo"], "export": [tmp_path / "new"], "replay": [tmp_path / "new"]}.get(command, [])
    sentence = refused(command, pair_run, *more, "--at", at)
    assert f"step {at!r} is not in this run; expected best, final, base or a number from 0 to 1" in sentence


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_folder_that_is_no_run_is_refused(command, refused, data_folder):
    assert f"'{data_folder}' is no run folder (it has no run.toml)" in refused(command, data_folder)


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_run_that_does_not_exist_is_refused(command, refused, tmp_path):
    assert f"'{tmp_path / 'nowhere'}' does not exist" in refused(command, tmp_path / "nowhere")


@pytest.mark.parametrize("command", ["evaluate", "journal"])
def test_a_file_that_is_no_journal_is_refused(command, refused, data_folder):
    assert "is no noback journal" in refused(command, data_folder / "train.jsonl")


@pytest.mark.parametrize("name", ["dev", "everything"])
def test_an_unknown_split_comes_with_the_known_ones(name, refused, pair_run):
    assert f"unknown split {name!r}; expected train, validation or test" in refused(
        "evaluate", pair_run, "--split", name
    )


def test_an_unknown_split_of_other_data_comes_with_the_known_ones(refused, pair_run, data_folder):
    assert "unknown split 'dev'; expected train, validation or test" in refused(
        "evaluate", pair_run, "--data", data_folder / "train.jsonl", "--split", "dev"
    )


def test_a_split_that_other_data_does_not_have_is_refused(refused, pair_run, data_folder):
    (data_folder / "validation.jsonl").unlink()
    assert "the data has no split 'validation'; it has test, train" in refused(
        "evaluate", pair_run, "--data", data_folder, "--split", "validation"
    )


def test_a_step_of_thousands_of_digits_is_not_in_the_run(refused, pair_run):
    assert "is not in this run; expected best" in (sentence := refused("evaluate", pair_run, "--at", "9" * 5000))
    assert len(sentence) < 400


def test_another_base_model_than_the_journals_is_refused(refused, pair_run):
    assert "was made from other base weights" in refused("evaluate", pair_run, "--model", "mini")


def test_a_journal_of_the_optimizer_is_no_run_to_evaluate(refused, tmp_path):
    MeZO(tiny_model("bert", vocab=10), lr=1e-3, journal=tmp_path / "journal")
    assert "journal" in refused("evaluate", tmp_path / "journal")


def test_an_unknown_task_to_show_comes_with_the_nearest(refused):
    assert "unknown task 'sts2'; did you mean 'sst2'?" in refused("tasks", "sts2")

"""Bad input at the command line: exit code 2, one sentence on stderr, nothing on stdout and no run folder."""

import gzip
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


# Tasks of one's own


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


def test_an_unknown_choice_comes_with_the_known_ones(train):
    assert "dtype is 'float8'; expected one of bfloat16, float32" in train("--dtype", "float8")


def test_an_unknown_flag_is_named(train):
    assert "unrecognized arguments: --momentum" in train("--momentum", "0.9")


def test_an_unknown_key_of_set_comes_with_the_nearest(train):
    assert "unknown option 'stepz'; did you mean 'steps'?" in train("--set", "stepz=3")


def test_a_set_without_an_equals_sign_comes_with_an_example(train):
    assert "--set 'rule.lr' has no '='; expected KEY=VALUE, such as rule.lr=2e-5" in train("--set", "rule.lr")


def test_a_set_beneath_a_plain_value_is_refused(train):
    assert "'steps' is no table of options" in train("--set", "steps.more=1")


def test_a_value_of_set_of_the_wrong_type_is_refused(train):
    assert "rule.lr is 'fast'; expected a number" in train("--set", "rule.lr=fast")


def test_a_configuration_file_that_does_not_exist_is_named(train, tmp_path):
    assert "nowhere.toml' cannot be read" in train("--config", tmp_path / "nowhere.toml")


def test_a_run_folder_that_exists_is_refused(refused, tiny_folder, data_folder, tmp_path):
    flags = ["--model", tiny_folder, "--data", data_folder, "--task", "reviews", "--steps", 2, "--out", tmp_path]
    assert f"run folder '{tmp_path}' exists; choose another with --out" in refused("train", *flags)


def test_a_run_folder_that_exists_is_left_as_it_was(refused, tiny_folder, data_folder, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    refused("train", "--model", tiny_folder, "--data", data_folder, "--steps", 2, "--out", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_command_is_asked_for(refused):
    assert "COMMAND" in refused()


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


@pytest.mark.parametrize("at", ["2", "-1", "first", "1.0", ""])
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


def test_another_base_model_than_the_journals_is_refused(refused, pair_run):
    assert "was made from other base weights" in refused("evaluate", pair_run, "--model", "mini")


def test_a_journal_of_the_optimizer_is_no_run_to_evaluate(refused, tmp_path):
    MeZO(tiny_model("bert", vocab=10), lr=1e-3, journal=tmp_path / "journal")
    assert "journal" in refused("evaluate", tmp_path / "journal")


def test_an_unknown_task_to_show_comes_with_the_nearest(refused):
    assert "unknown task 'sts2'; did you mean 'sst2'?" in refused("tasks", "sts2")

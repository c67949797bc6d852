"""Demonstrations before a prompt, a preamble of one's own, and chats."""

import copy
from collections import Counter
from dataclasses import replace

import pytest

from noback import RunConfig, predict, tuned_run
from noback.errors import InputError
from noback.run import drawn_data
from noback.tasks import Task, load_spec
from noback.tasks.data import Example
from noback.tasks.demonstrations import demonstration
from noback.tasks.spec import spec_of
from noback.training import Interrupted, resume, train
from tests.conftest import POSITIVE

CHAT = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}{{ '[assistant]\n' }}"


@pytest.fixture
def config(tiny_causal_folder, data_folder):
    return RunConfig(
        model=str(tiny_causal_folder), task="reviews-causal", data=str(data_folder), steps=2, batch=4, demonstrations=2
    )


def asked(task, *sentences):
    return task._tokenizer.decode(task.asked([sentences])[0])


def test_demonstrations_are_of_each_label_and_are_not_trained_on(config):
    drawn = drawn_data(config)
    whole = drawn_data(replace(config, demonstrations=None))
    taken = [example for example in whole.splits["train"] if example not in drawn.splits["train"]]
    assert Counter(example.gold for example in taken) == {0: 1, 1: 1}
    assert all(example.sentences[0] in drawn.preamble for example in taken)
    assert drawn.splits["test"] == whole.splits["test"]


def test_demonstrations_stand_before_the_prompt_with_their_answers(config, tokenizer):
    task = Task(load_spec("reviews-causal"), tokenizer)
    task.use(drawn_data(config))
    first, second, prompt = asked(task, "a film").split("\n\n")
    assert prompt == "a film It was"
    assert {first.rsplit(" ", 1)[1], second.rsplit(" ", 1)[1]} == {"great", "terrible"}


def test_a_journal_holds_the_demonstrations_so_that_predicting_needs_no_data(config, tmp_path, data_folder):
    result = train(config, tmp_path / "run")
    for file in data_folder.iterdir():
        file.unlink()
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights
    assert sum(text in run.task.spec.preamble for text in POSITIVE) == 1
    with_them = predict(run, ["a film"])
    run.task = Task(replace(run.task.spec, preamble=""), run.tokenizer)
    assert predict(run, ["a film"]) != with_them


def test_a_run_with_demonstrations_goes_on_to_the_same_bits(config, tmp_path):
    whole = train(config, tmp_path / "whole")
    asked_to_stop = iter([False, True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(asked_to_stop))
    assert resume(tmp_path / "run").final_weights == whole.final_weights


def test_a_long_row_of_demonstrations_loses_the_first_of_them(config, tokenizer):
    task = Task(load_spec("reviews-causal"), tokenizer, 20)
    task.use(drawn_data(config))
    shown = asked(task, "a film")
    assert shown.endswith("\n\na film It was")
    assert shown.count("\n\n") < 3
    assert len(task.asked([("a film",)])[0]) == 20


@pytest.mark.parametrize(
    ("name", "example", "text"),
    [
        ("copa", Example(("It rained.", "effect"), 1, ("I ate.", "It was wet.")), "It rained so it was wet."),
        ("boolq", Example(("Ice floats.", "is it so"), 1), "Ice floats. is it so?\nYes"),
        ("instructions", Example(("Say hi.",), 0, accepted=("Hi!", "Hey!")), "Say hi. Hi!"),
    ],
)
def test_a_demonstration_is_a_prompt_and_its_right_answer(name, example, text):
    assert demonstration(example, load_spec(name)) == text


def test_demonstrations_are_refused_for_masked_models(tiny_folder, data_folder):
    config = RunConfig(model=str(tiny_folder), data=str(data_folder), demonstrations=2)
    with pytest.raises(InputError, match="demonstrations are for causal models; task 'reviews' is for masked ones"):
        drawn_data(config)


def test_demonstrations_must_leave_examples_to_train_on(config):
    with pytest.raises(InputError, match="8 demonstrations leave nothing of the 8 examples"):
        drawn_data(replace(config, demonstrations=8))


def test_a_configuration_without_demonstrations_is_as_it_was():
    assert "demonstrations" not in RunConfig().table()


# Chats


@pytest.fixture
def chatting(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHAT
    return tokenizer


def chat_spec(**entries):
    return spec_of({**load_spec("sst2-causal").table(), "chat": True, **entries}, "own.toml")


def test_a_chat_shows_the_prompt_as_the_users_message_and_opens_it_once(chatting):
    assert asked(Task(chat_spec(), chatting), "a film") == "<s>[user] a film It was\n[assistant]\n"


def test_an_answer_in_a_chat_stands_as_the_template_leaves_off(chatting, tokenizer):
    (yes, no) = Task(chat_spec(words={"1": "Yes", "0": "No"}), chatting).word_ids
    assert tokenizer.convert_ids_to_tokens([yes, no]) == ["Yes", "No"]
    chatting.chat_template = CHAT.replace("[assistant]\n", "[assistant]")
    (yes, no) = Task(chat_spec(words={"1": "Yes", "0": "No"}), chatting).word_ids
    assert tokenizer.convert_ids_to_tokens([yes, no]) == ["ĠYes", "ĠNo"]


def test_a_chat_with_a_tokenizer_that_has_no_template_is_refused(tokenizer):
    with pytest.raises(InputError, match="is a chat and the model's tokenizer has no chat template"):
        Task(chat_spec(), tokenizer)


def test_a_preamble_of_ones_own_stands_before_every_prompt(tokenizer):
    spec = spec_of({**load_spec("sst2-causal").table(), "preamble": "Judge the film.\n\n"}, "own.toml")
    assert asked(Task(spec, tokenizer), "a film") == "<s>Judge the film.\n\na film It was"

"""Point 9: `noback` alone helps, flags stand in groups, and another program's flag is answered with its name here."""

import argparse
import re

import pytest

from noback.cli.main import COMMANDS, _parser
from noback.flag_names import OTHER_NAMES

TITLES = ["data", "model", "method", "run", "output"]


@pytest.fixture
def refused(noback):
    """Runs a command that must be refused in one sentence, and returns that."""

    def call(*words):
        code, out, err = noback(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return call


@pytest.fixture
def train(refused, tmp_path):
    """Runs a training that must be refused and leave no folder behind."""

    def call(*words):
        sentence = refused("train", "--out", tmp_path / "run", *words)
        assert not (tmp_path / "run").exists()
        return sentence

    return call


def parser_of(command):
    (action,) = [action for action in _parser(command)._actions if isinstance(action, argparse._SubParsersAction)]
    return action.choices[command]


def test_noback_alone_shows_the_help_and_succeeds(noback):
    code, out, err = noback()
    assert (code, err) == (0, "")
    assert out.startswith("usage: noback ")
    assert all(f"\n    {name}" in out for name in COMMANDS)


def test_the_flags_of_train_stand_in_groups_in_the_order_of_the_work():
    groups = {
        group.title: [action.dest for action in group._group_actions] for group in parser_of("train")._action_groups
    }
    assert [title for title in groups if title in TITLES] == TITLES
    assert {"task", "data", "shots"} <= {*groups["data"]}
    assert {"model", "adapter", "dtype"} <= {*groups["model"]}
    assert {"objective", "estimator.eps", "rule.lr"} <= {*groups["method"]}
    assert {"steps", "batch", "seed"} <= {*groups["run"]}
    assert {"out", "json"} <= {*groups["output"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_of_a_command_is_left_outside_its_groups(command):
    assert [action.dest for action in parser_of(command)._optionals._group_actions] == ["help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_of_a_command_is_one_short_line(command):
    assert re.fullmatch(r"usage: noback .* ?\[OPTIONS\]\n", parser_of(command).format_usage())


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--epsilon", "--eps"),
        ("--batch-size", "--batch"),
        ("--learning-rate", "--lr"),
        ("--learning_rate", "--lr"),
        ("--eval_every", "--eval-every"),
        ("--max-steps", "--steps"),
        ("--num-steps", "--steps"),
        ("--output-dir", "--out"),
        ("--model-name-or-path", "--model"),
        ("--lora-rank", "--adapter lora --set adapter.rank=N"),
        ("--k", "--shots"),
        ("--q", "--directions"),  # though --q might be short for --quantise
    ],
)
def test_a_flag_that_has_another_name_here_is_answered_with_it(typed, ours, train):
    for words in ((typed, "3"), (f"{typed}=3",)):
        assert (
            train(*words)
            == f"noback: {typed} is not an option: here it is {ours} (`noback train --help` shows its options)\n"
        )


@pytest.mark.parametrize("ours", [ours for ours in OTHER_NAMES if ours != "--patience"])
def test_every_name_that_is_offered_is_that_of_a_flag(ours):
    flags = {flag for command in COMMANDS for flag in parser_of(command)._option_string_actions}
    assert ours.split()[0] in flags


@pytest.mark.parametrize(
    ("words", "batch", "steps"), [((), 64, 16), (("--batch", 8), 8, 125), (("--batch=10",), 10, 100)]
)
def test_epochs_are_answered_with_the_steps_that_one_takes(words, batch, steps, train):
    sentence = train("--epochs", 3, *words)
    assert "noback counts steps, not epochs" in sentence
    assert f"divided by --batch ({batch}), so 1,000 examples are --steps {steps} an epoch" in sentence


def test_an_unknown_flag_comes_before_what_is_missing(refused):
    assert "'--batch-size' is not an option of `noback evaluate`" in refused("evaluate", "--batch-size", 8)


def test_a_misspelt_flag_is_answered_with_the_nearest(train):
    assert "did you mean '--steps'?" in train("--stepz", 3)


def test_a_text_after_two_dashes_is_no_flag():
    found = _parser("predict").parse_args(["predict", "run", "--", "--epsilon"])
    assert (found.run, found.texts) == ("run", ["--epsilon"])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_a_terminal_of_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in parser_of(command).format_help().splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("width", [80, 200])
def test_an_example_of_the_help_stays_one_command_of_the_shell(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = parser_of("train").format_help().replace(" \\\n", " ")
    command = 'noback train --data my.csv --template "{text} It was {mask}." --words "0=terrible,1=great"'
    assert command in re.sub(" +", " ", shown)


@pytest.mark.parametrize(
    ("typed", "said"), [("trian", "'trian' is not a command; did you mean 'train'?"), ("x", "'x' is not a command")]
)
def test_an_unknown_command_is_answered_with_the_nearest(typed, said, refused):
    assert refused(typed).startswith(f"noback: {said} (choose from 'train', ")

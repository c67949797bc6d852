"""The command that repeats a run leads back to the same configuration."""

import dataclasses
import shlex

import pytest

from noback.cli.flags import config_from
from noback.cli.main import _parser
from noback.config import RunConfig, config_of
from noback.flag_names import FLAGS
from noback.reporting.command import command_to_repeat

ESTIMATOR = {"eps": 3e-4, "directions": 4}
TIES = {"target": 0.3, "largest": 0.05, "window": 8}
CONFIGS = {
    "default": {},
    "head": {"adapter": {"kind": "head", "alone": True, "seed": 2**64 - 1}},
    "function": {"objective": {"kind": "function", "function": "mine:cost", "reads": "text", "smooth": True}},
    "lora": {"adapter": {"kind": "lora", "rank": 4, "targets": "query,value"}},
    "prefix": {"adapter": {"kind": "prefix", "tokens": 7}},
    "biases": {"adapter": {"kind": "full", "tune": "biases, *.query.weight"}},
    "ties": {"objective": "accuracy", "estimator": ESTIMATOR, "adapt_ties": TIES},
    "methods": {
        "estimator": {"kind": "one_sided", "directions": 3},
        "rule": {"kind": "momentum", "beta": 0.5, "window": 4},
        "noise": "normal",
        "readout": {"kind": "exact", "refits": 1, "decay": 0.5},
        "engine": {"kind": "local", "probes_per_pass": 2, "matmul_precision": "tf32"},
    },
    "numbers": {"rule": {"lr": 1.2345678901234567e-05, "schedule": "linear"}, "shots": 16},
    "odd texts": {"data": 'a b/it\'s $HOME `x` "y"\n.jsonl', "columns": "-text,stars", "model": "größe|<b>"},
}


@pytest.mark.parametrize("table", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_command_parses_back_into_an_equal_configuration(table):
    config = config_of(table)
    line = " ".join(command_to_repeat(config.table(), FLAGS))
    program, *words = shlex.split(line)
    assert program == "noback"
    assert config_from(_parser().parse_args(words)) == config.settled()


def test_every_option_with_a_flag_is_said_by_its_flag():
    parts = command_to_repeat(RunConfig().table(), FLAGS)
    assert "--lr 2e-05" in parts
    said = {part.removeprefix("--set ").strip("'").split("=")[0] for part in parts if part.startswith("--set")}
    assert not said & set(FLAGS.values())


def test_every_kind_is_named():
    said = " ".join(command_to_repeat(config_of(CONFIGS["methods"]).table(), FLAGS))
    for named in ("--estimator one_sided", "--rule momentum", "--noise normal", "--engine local", "--adapter full"):
        assert named in said


def test_another_value_makes_another_command():
    config = RunConfig()
    other = dataclasses.replace(config, seed=1)
    assert command_to_repeat(config.table(), FLAGS) != command_to_repeat(other.table(), FLAGS)

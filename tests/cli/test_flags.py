"""Flags and --set as one: a kind named by either keeps the options that the other gives."""

import pytest

from noback import CurvatureWeighted, Lora, Momentum, OneSided
from noback.cli.flags import config_from
from noback.cli.main import _parser
from noback.config import RunConfig


def config_by(*words):
    return config_from(_parser("train").parse_args(["train", *words]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--set", "estimator=one_sided", "--directions", "4", "--eps", "0.5"), {"estimator": OneSided(0.5, 4)}),
        (("--beta", "0.3", "--set", "rule=momentum"), {"rule": Momentum(beta=0.3)}),
        (("--set", "rule.beta=0.3", "--set", "rule=momentum"), {"rule": Momentum(beta=0.3)}),
        (("--set", "estimator.kind=curvature", "--power", "0.2"), {"estimator": CurvatureWeighted(power=0.2)}),
        (("--set", "adapter.rank=3", "--set", "adapter=lora"), {"adapter": Lora(rank=3)}),
    ],
    ids=str,
)
def test_set_names_a_kind_as_its_flag_does(words, expected):
    assert config_by(*words) == RunConfig(**expected)


def test_a_kind_by_set_wins_over_a_file_of_another_kind(tmp_path):
    (tmp_path / "run.toml").write_text(RunConfig(estimator=CurvatureWeighted(power=0.2)).toml())
    found = config_by("--config", str(tmp_path / "run.toml"), "--set", "estimator=one_sided")
    assert found.estimator == OneSided()


@pytest.mark.parametrize("words", [("--estimator", "curvature"), ("--set", "estimator=curvature")], ids=str)
def test_a_file_of_the_same_kind_keeps_its_options(tmp_path, words):
    (tmp_path / "run.toml").write_text(RunConfig(estimator=CurvatureWeighted(power=0.2, directions=3)).toml())
    found = config_by("--config", str(tmp_path / "run.toml"), *words, "--directions", "2")
    assert (found.estimator.power, found.estimator.directions) == (0.2, 2)


def test_the_help_of_an_option_says_what_it_is_for_each_kind(capsys):
    with pytest.raises(SystemExit):
        _parser("train").parse_args(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for said in (
        "two_sided: directions a step; each costs two forwards (default 1)",
        "one_sided: directions a step; each costs one forward, and one more is taken at the weights (default 8)",
        "none: normal, with one_sided rademacher",
    ):
        assert said in shown

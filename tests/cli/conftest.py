"""What the tests of refused input share."""

import pytest


@pytest.fixture
def refused(noback):
    """Runs a command that must be refused and returns its sentence."""

    def call(*arguments):
        code, out, err = noback(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("noback: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, f"more than one line: {err}"
        return err

    return call


@pytest.fixture
def train(refused, tiny_folder, data_folder, tmp_path):
    """Runs a training that must be refused and leave no folder behind; returns its sentence."""

    def call(*flags, model=tiny_folder, data=data_folder, task="reviews"):
        out = tmp_path / "run"
        sentence = refused(
            "train", "--model", model, "--data", data, "--task", task, "--steps", 2, "--out", out, *flags
        )
        assert not out.exists()
        return sentence

    return call

"""Point 10: `noback completion` prints a script that a shell completes noback with."""

import shutil
import subprocess

import pytest

from noback.cli.main import COMMANDS
from noback.tasks import task_names

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell as a file."""
    import contextlib
    import io

    from noback.cli.main import main

    folder, files = tmp_path_factory.mktemp("completion"), {}
    for shell in SHELLS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(["completion", shell]) == 0
        files[shell] = folder / shell
        files[shell].write_text(out.getvalue())
    return files


@pytest.fixture
def completed(scripts, tmp_path):
    """What bash offers for the last of some words, as a terminal's tab would, in a folder with a run."""
    (tmp_path / "runs" / "reviews-001").mkdir(parents=True)

    def call(*words):
        lines = (
            'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _noback; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        found = subprocess.run(
            ["bash", "-c", lines, "bash", scripts["bash"], "noback", *words],
            check=True, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert found.stderr == ""
        return found.stdout.split()

    return call


def test_bash_completes_the_commands(completed):
    assert completed("") == [*COMMANDS, "--help", "--version"]
    assert completed("ep") == ["epsilon"]


def test_bash_completes_the_flags_of_the_command(completed):
    assert completed("train", "--st") == ["--steps"]
    assert completed("report", "--st") == []
    assert {"--markdown", "--out"} <= {*completed("report", "--")}


def test_bash_completes_the_choices_of_a_flag(completed):
    assert completed("train", "--estimator", "") == ["two_sided", "one_sided", "curvature"]
    assert completed("compare", "--dtype", "b") == ["bfloat16"]
    assert completed("train", "--dtype", "=", "b") == ["bfloat16"]  # bash parts --dtype=b so
    assert completed("evaluate", "runs/reviews-001", "--split", "v") == ["validation"]
    assert completed("train", "--divide", "p") == ["points"]
    assert completed("baseline", "p") == ["probe"]
    assert set(task_names()) <= {*completed("train", "--task", "")}


def test_bash_completes_the_folders_of_runs(completed):
    assert completed("evaluate", "ru") == ["runs"]
    assert completed("report", "runs/") == ["runs/reviews-001"]
    assert completed("train", "--data", "r") == ["runs"]


def test_bash_offers_nothing_for_a_number(completed):
    assert completed("train", "--steps", "") == []


def test_bash_offers_the_flags_where_a_command_takes_nothing_else(completed):
    assert "--steps" in completed("train", "--json", "")


def test_bash_knows_the_function_once_the_script_is_read(scripts):
    lines = 'source "$1"; complete -p noback'
    found = subprocess.run(["bash", "-c", lines, "bash", scripts["bash"]], check=True, capture_output=True, text=True)
    assert found.stdout == "complete -F _noback noback\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_there_can_read_its_script(shell, scripts):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")
    found = subprocess.run([shell, "-n", scripts[shell]], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_every_script(shell, scripts):
    text = scripts[shell].read_text()
    assert [name for name in COMMANDS if name not in text] == []
    assert "two_sided" in text


def test_an_unknown_shell_is_refused_with_those_that_are_known(noback):
    code, out, err = noback("completion", "tcsh")
    assert (code, out) == (2, "")
    assert "shell is 'tcsh'; expected one of bash, fish, zsh" in err

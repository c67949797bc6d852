"""CONTRIBUTING's section on adding a method, followed literally in a copy of the package."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("## Add a method")[1].split("\n## ")[0]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", SECTION, flags=re.S)


@pytest.fixture
def copied(tmp_path):
    """The package and its tests, with what the page adds."""
    for folder in ("src", "tests", "docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path / path.name)
    (file,) = blocks("python")
    path, text = file.split("\n", 1)
    (tmp_path / path.removeprefix("# ")).write_text(text)
    for change in blocks("diff"):
        path, *lines = change.splitlines()
        add(tmp_path / path.removeprefix("# "), lines)
    return tmp_path


def add(path, lines):
    """Put each line with a plus after the line that the page shows before it."""
    text = path.read_text().splitlines()
    for before, after in pairwise(lines):
        if after.startswith("+"):
            assert text.count(before[1:]) == 1, f"{path.name} has no line {before[1:]!r}"
            text.insert(text.index(before[1:]) + 1, after[1:])
    path.write_text("\n".join(text) + "\n")


def test_a_method_goes_from_an_empty_file_to_green(copied, tiny_folder, data_folder):
    environment = os.environ | {"PYTHONPATH": str(copied / "src"), "OMP_NUM_THREADS": "1"}
    (commands,) = blocks("sh")
    said = {}
    for line in commands.strip().splitlines():
        program, *words = shlex.split(line)
        module = {"pytest": ["pytest", "--numprocesses=0"], "noback": ["noback"]}[program]
        if words[0] == "train":  # a model of a few thousand weights in place of the embedded one
            words += ["--model", str(tiny_folder), "--data", str(data_folder), "--batch", "4"]
        done = subprocess.run(
            [sys.executable, "-m", *module, *words],
            cwd=copied,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        said[words[0]] = done.stdout
    assert int(re.search(r"(\d+) passed", said["tests/contracts"])[1]) > 30
    assert "runs/forward" in said["train"]
    report = (copied / "runs" / "forward" / "report.html").read_text()
    assert "--estimator forward" in report

"""Law 10: every shipped task, example and README command runs; `__all__` is sorted and complete."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

import noback
from noback.adapters import AnyAdapter
from noback.directions import AnyNoise
from noback.embedded import DATA
from noback.engines import AnyEngine
from noback.estimators import AnyEstimator
from noback.objectives import AnyObjective
from noback.rules import AnyRule
from noback.tasks import load_spec, task_names
from tests.conftest import rows_of, write_rows

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# The same path, sooner done.
SOONER = {
    "train": ["--steps", "2", "--batch", "4", "--test-limit", "8"],
    "compare": ["--steps", "2", "--batch", "4", "--test-limit", "8"],
    "sweep": ["--steps", "2", "--batch", "4", "--test-limit", "8"],
    "epsilon": ["--probes", "2", "--batch", "4"],
    "baseline": ["--steps", "2", "--batch", "4", "--test-limit", "8"],
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def sooner(words: list[str]) -> list[str]:
    """Flags with which a command takes less time; what it does by default is left to it."""
    few = ["--readout-examples", "8"] if words[0] in ("train", "sweep") and "--readout" not in words else []
    return SOONER.get(words[0], []) + few


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder that looks like a fresh checkout, to run the pages' commands in."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("as_people_have_it")
@pytest.mark.parametrize("name", task_names())
def test_every_shipped_task_trains_a_step(name, tiny_folder, tiny_causal_folder, tmp_path, noback):
    spec = load_spec(name)
    data = write_rows(tmp_path / "data.jsonl", rows_of(spec))
    model = tiny_causal_folder if spec.is_causal else tiny_folder
    code, out, err = noback(
        "train", "--model", model, "--task", name, "--data", data, "--steps", 1, "--batch", 4, "--out",
        tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["task"] == name


@pytest.mark.usefixtures("as_people_have_it")
def test_the_commands_of_the_readme_run_in_their_order(workplace, noback, capsys):
    commands = [
        line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines() if line.startswith("noback ")
    ]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        words += sooner(words)
        code, _, err = noback(*words)
        assert code == 0, f"{command}: {err}"


def test_the_readme_names_the_commands_that_the_makefile_has():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make (\w+)", text))
    assert {"train", "test"} <= named <= targets


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, workplace):
    program = "\n".join(blocks(page, "python"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=workplace, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example, workplace):
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=workplace, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_public_names_are_sorted_and_there():
    assert noback.__all__ == sorted(noback.__all__)
    unions = (AnyAdapter, AnyEngine, AnyEstimator, AnyNoise, AnyObjective, AnyRule)
    kinds = {kind.__name__ for union in unions for kind in get_args(union) or (union,)}
    assert kinds < set(noback.__all__)
    assert all(getattr(noback, name).__module__.startswith("noback.") for name in noback.__all__)


def test_the_embedded_reviews_are_balanced_and_no_two_are_alike():
    seen: Counter[str] = Counter()
    for split, size in (("train", 256), ("validation", 144), ("test", 400)):
        rows = [json.loads(line) for line in (DATA["reviews"] / f"{split}.jsonl").read_text().splitlines()]
        assert len(rows) == size
        assert sum(row["label"] for row in rows) == size // 2
        seen.update(re.sub(r"\W+", " ", row["sentence"].lower()).strip() for row in rows)
    assert max(seen.values()) == 1
    assert max(Counter(" ".join(text.split()[:4]) for text in seen).values()) == 1


def test_no_page_links_to_a_file_that_is_not_there():
    for page in [*PAGES, *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

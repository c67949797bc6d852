"""The documents: reference pages are what the code gives, links lead somewhere, commands run, numbers are measured."""

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.laws.test_law_10_shipped import SOONER, blocks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
WIDTH = 140
RESULTS = ROOT / "benchmarks" / "results"
STORY = DOCS / "log.md"  # names files and flags that are gone
GUIDES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page != STORY)]
COMING = {"--matmul-precision", "--rule"}  # flags of the next version that pages name already; then delete this


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(page: Path) -> str:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda found: found[0].replace("[", "(").replace("]", ")"), text)


def anchors(page: Path) -> set[str]:
    """What a code host and mkdocs both make of a page's headings."""
    heads = re.findall(r"^#+ +(.*)$", without_code(page), flags=re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", head.strip().lower())) for head in heads}


def known_flags() -> set[str]:
    from noback.cli.main import _parser

    (commands,) = [action.choices for action in _parser(None)._actions if isinstance(action.choices, dict)]
    return {flag for command in commands.values() for flag in command._option_string_actions}


def named_flags(page: Path) -> set[str]:
    """The flags that a page names; of the table from another program's flags to noback's, the second column."""
    lines = page.read_text().splitlines()
    if page.name == "coming-from.md":
        lines = [line.split(" | ")[1] for line in lines if line.startswith("| `--")]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", "\n".join(lines)))


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "python.md"])
def test_a_reference_page_is_what_the_code_gives(name, reference):
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert written == reference.pages()[name], f"docs/reference/{name} is stale: run `make reference` and commit it"


def test_the_reference_does_not_depend_on_the_terminal_or_the_machine(reference, monkeypatch):
    wide = reference.pages()
    monkeypatch.setenv("COLUMNS", "40")
    assert reference.pages() == wide
    assert not any(str(ROOT) in text or " at 0x" in text for text in wide.values())


def test_the_reference_names_every_public_name_and_every_flag(reference):
    import noback

    pages = reference.pages()
    assert [name for name in noback.__all__ if f"### {name}\n" not in pages["python.md"]] == []
    assert [flag for flag in sorted(known_flags() - {"-h", "--help"}) if flag not in pages["cli.md"]] == []
    assert "`--steps" in pages["cli.md"].partition("## Options of a run\n")[2]


@pytest.mark.parametrize("page", [page for page in GUIDES if named_flags(page)], ids=name_of)
def test_every_flag_that_a_page_names_is_there(page):
    assert named_flags(page) - known_flags() - COMING == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_too_long(page):
    long = [index for index, line in enumerate(page.read_text().splitlines(), 1) if len(line) > WIDTH]
    assert long == [], f"{name_of(page)} has lines over {WIDTH} characters"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_every_file_that_a_page_names_is_there(page):
    for path in re.findall(r"`((?:tests|benchmarks|examples|src|docs)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


def test_every_page_is_on_the_site():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert there <= listed
    assert {path.name for path in ROOT.glob("*.md")} - {"README.md"} == listed - there


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """A folder with the examples and one short run of the embedded model, for pages that begin with one."""
    from noback.cli.main import main

    place = tmp_path_factory.mktemp("trained")
    run = place / "runs" / "reviews-001"
    assert main(["train", *SOONER["train"], "--out", str(run)]) == 0
    shutil.copytree(ROOT / "examples", place / "examples")
    return place


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert all(line.startswith("noback ") for line in lines), f"{page}: a block `sh` holds noback's commands only"
    return lines


@pytest.mark.parametrize("page", [page for page in sorted(DOCS.rglob("*.md")) if blocks(page, "sh")], ids=name_of)
def test_the_commands_of_a_page_run_in_their_order(page, trained, tmp_path, noback, monkeypatch):
    place = shutil.copytree(trained, tmp_path / "place")
    if commands(page)[0] == "noback train":  # the page makes that run itself
        shutil.rmtree(place / "runs")
    monkeypatch.chdir(place)
    for command in commands(page):
        words = shlex.split(command, comments=True)[1:]
        code, _, err = noback(*words, *SOONER.get(words[0], []))
        assert code == 0, f"{command}: {err}"


def figures() -> dict[str, tuple[str, ...]]:
    """What the rows of the README's table must hold, from the results files."""
    held = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("reviews", "sst2", "cpu", "gpu")}
    runs = {f"--shots {run['command'].split('--shots ')[1].split()[0]}": run for run in held["sst2"]["runs"]}
    cases = {case["command"]: {row["contender"]: row for row in case["contenders"]} for case in held["gpu"]["cases"]}
    over = held["cpu"]["memory"]["over_inference"]
    roberta, opt = (
        next(rows for command, rows in cases.items() if f"--shape {shape} --dtype bfloat16" in command)
        for shape in ("roberta-large", "opt-13b")
    )
    return {
        "`noback train` |": learned(held["reviews"]["runs"][0]),
        "--shots 16`": learned(runs["--shots 16"]),
        "--shots 512`": learned(runs["--shots 512"]),
        "benchmarks/cpu.py": (f"{over['step, one pass']:.2f} x", f"Adam {over['Adam']:.2f} x"),
        "--shape roberta-large": timed(roberta),
        "--shape opt-13b": timed(opt),
        "the same, peak memory": tuple(f"{opt[name]['over_inference']:.2f} x" for name in ("noback", "adam")),
    }


def learned(run: dict) -> tuple[str, ...]:
    return (f"{100 * run['zero_shot']:.1f} → {100 * run['best']:.1f} %", f"{run['seconds']:.0f} s")


def timed(rows: dict) -> tuple[str, ...]:
    return tuple(f"{rows[name]['milliseconds']:.1f} ms" for name in ("noback", "published", "adam"))


@pytest.mark.parametrize("row", figures())
def test_a_number_of_the_readmes_table_is_that_of_its_results_file(row):
    table = (ROOT / "README.md").read_text().partition("## Results")[2].partition("## What next")[0]
    (line,) = [line for line in table.splitlines() if row in line]
    assert [figure for figure in figures()[row] if figure not in line] == []

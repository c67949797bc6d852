"""The documents: reference pages are what the code gives, links lead somewhere, commands run, numbers are measured."""

import importlib.util
import json
import re
import shlex
import shutil
import tomllib
import typing
from pathlib import Path

import pytest

from tests.laws.test_law_10_shipped import blocks, sooner

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
WIDTH = 140
RESULTS = ROOT / "benchmarks" / "results"
STORY = DOCS / "log.md"  # names files and flags that are gone
GUIDES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page != STORY)]


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
    from noback.cli.groups import actions_of
    from noback.cli.main import _parser

    (commands,) = [action.choices for action in _parser(None)._actions if isinstance(action.choices, dict)]
    parsers = [one for command in commands.values() for one in (command, *actions_of(command).values())]
    return {flag for parser in parsers for flag in parser._option_string_actions}


def named_flags(page: Path) -> set[str]:
    """The flags that a page names; of the table from another program's flags to noback's, the second column."""
    lines = page.read_text().splitlines()
    if page.name == "coming-from.md":
        lines = [line.split(" | ")[1] for line in lines if line.startswith("| `--")]
    if page.name in ("serve.md", "servers.md"):  # of servers' flags besides
        lines = [line for line in lines if line.startswith("noback ")]
    text = re.sub(r"torchrun(\s+--[a-z-]+(\s+\w+)?)+", "torchrun", "\n".join(lines))  # its own flags
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


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
    assert named_flags(page) - known_flags() == set()


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
    assert main(["train", *sooner(["train"]), "--readout", "auto", "--out", str(run)]) == 0
    shutil.copytree(ROOT / "examples", place / "examples")
    return place


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert all(line.startswith("noback ") for line in lines), f"{page}: a block `sh` holds noback's commands only"
    return lines


@pytest.mark.usefixtures("as_people_have_it")
@pytest.mark.parametrize("page", [page for page in sorted(DOCS.rglob("*.md")) if blocks(page, "sh")], ids=name_of)
def test_the_commands_of_a_page_run_in_their_order(page, trained, tmp_path, noback, monkeypatch):
    place = shutil.copytree(trained, tmp_path / "place")
    if commands(page)[0] == "noback train":  # the page makes that run itself
        shutil.rmtree(place / "runs")
    monkeypatch.chdir(place)
    for command in commands(page):
        words = shlex.split(command, comments=True)[1:]
        code, _, err = noback(*words, *sooner(words))
        assert code == 0, f"{command}: {err}"


def table(page: str, head: str) -> dict[str, list[str]]:
    """The rows of a page's table whose head begins so: by the word of the first cell, the others without backticks."""
    _, _, rest = (DOCS / page).read_text().partition(f"\n| {head}")
    rows = rest.split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")] for row in rows]
    return {first.split()[0]: others for first, *others in cells}


def kinds(union: object) -> dict[str, type]:
    return {kind.kind: kind for kind in typing.get_args(union)}


def test_the_usual_numbers_of_the_adapters_page_are_those_of_the_code():
    from noback.adapters import AnyAdapter
    from noback.usual import usual_eps, usual_lr

    told = {
        name: [float(cell) for cell in cells]
        for name, cells in table("concepts/adapters.md", "`--adapter` | lr").items()
    }
    assert told == {
        name: [
            usual_lr(name, "two_sided", "sgd", "float32"), usual_lr(name, "one_sided", "sgd", "float32"),
            usual_eps(name, "two_sided", "sgd", "float32"), usual_eps(name, "two_sided", "sgd", "bfloat16"),
            usual_lr(name, "backprop", "adam", "float32"),
        ]
        for name in kinds(AnyAdapter)
    }  # fmt: skip


def test_the_rules_that_the_adapters_page_names_have_usual_numbers_of_their_own():
    from noback.usual import USUAL

    assert {row.rule for row in USUAL if row.estimator != "backprop"} == {"*", "normalised", "adam", "adamm"}


def test_what_the_methods_page_says_of_an_estimator_is_so():
    from noback.estimators import AnyEstimator

    costs, records = table("guides/methods.md", "`--estimator`"), table("guides/methods.md", "estimator | slopes")
    assert {"two_sided", "one_sided", "curvature"} <= costs.keys() == records.keys()
    for name in costs:  # a new method need not be there
        kind = kinds(AnyEstimator)[name]
        _, forwards, directions, noise = costs[name]
        _, figures, size = records[name]
        n = kind().directions
        assert (int(directions), noise) == (n, kind.usual_noise)
        assert eval(forwards.replace("2n", f"2*{n}").replace("n", str(n))) == kind().forwards
        assert int(size) == 16 + 4 * (n + len(kind.figures))
        assert [figures.split(":")[0]] == ([*kind.figures] or ["none"])


def test_what_the_methods_page_says_of_rules_and_noise_is_so():
    from noback.directions import AnyNoise
    from noback.rules import AnyRule

    assert {"sgd", "momentum"} <= table("guides/methods.md", "`--rule`").keys() <= kinds(AnyRule).keys()
    bits = {name: int(cells[-1]) for name, cells in table("guides/methods.md", "`--noise`").items()}
    assert {"normal", "rademacher"} <= bits.keys()
    assert bits == {name: kinds(AnyNoise)[name].bits for name in bits}


def test_the_toml_of_the_methods_page_is_a_configuration():
    from noback.config import config_of

    (block,) = blocks(DOCS / "guides" / "methods.md", "toml")
    config = config_of(tomllib.loads(block))
    assert (config.estimator.kind, config.rule.kind, config.known_noise.kind) == ("curvature", "momentum", "rademacher")


def test_the_methods_page_names_its_results_file_once_that_is_there():
    page = (DOCS / "guides" / "methods.md").read_text()
    there = (RESULTS / "methods.json").exists()
    assert ("](../../benchmarks/results/methods.json)" in page) == there, (
        "write the figures of methods.json into the page"
    )
    assert ("There is no results file yet" in page) != there


@pytest.mark.parametrize("name", ["full", "lora", "prefix"])
def test_the_journal_pages_lines_read_a_runs_journal(name, capsys, tmp_path):
    """That of a run of 0.1.0, written anew in today's format."""
    from noback.journal import Journal, read_journal
    from tests.hostile.forging import records_in_order

    contents = read_journal(ROOT / "tests" / "data" / "journals-0.1.0" / name / "journal")
    journal = Journal.create(tmp_path / "journal", {**contents.header, "figures": []})
    for record in records_in_order(contents):
        journal.append(record)
    said = read_by_the_page(tmp_path / "journal", capsys)
    assert [line for line in said if line.startswith("step")] == [
        f"step {one.step} {one.loss} {[*one.slopes]} {{}}" for one in contents.steps
    ]
    assert len([line for line in said if line.startswith("evaluation")]) == len(contents.evaluations) > 1


def test_the_journal_pages_lines_read_figures(tmp_path, capsys):
    import torch

    import noback

    model = torch.nn.Linear(4, 2)
    optimizer = noback.MeZO(model, lr=1e-2, estimator=noback.OneSided(directions=3), journal=tmp_path / "journal")
    loss = optimizer.step(lambda: model.weight.pow(2).sum())
    (line,) = read_by_the_page(tmp_path / "journal", capsys)
    assert re.fullmatch(rf"step 0 {re.escape(str(loss))} \[\S+, \S+, \S+\] {{'spread': \S+}}", line)


def read_by_the_page(path: Path, capsys) -> list[str]:
    _, reading = blocks(DOCS / "concepts" / "journal.md", "python")
    exec(reading, {"path": path})
    return capsys.readouterr().out.splitlines()


def test_the_bench_page_names_the_contenders_and_every_key_of_a_row():
    from noback.bench import CONTENDERS, BenchCase
    from noback.bench.measuring import Measured
    from noback.bench.table import rows

    page = (DOCS / "guides" / "bench.md").read_text()
    assert tuple(table("guides/bench.md", "contender")) == CONTENDERS
    keys = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`.*?) \|", page.partition("| key |")[2].partition("\n\n")[0], re.M))
    )
    assert keys == [*rows({"eager": Measured([1.0])}, ["eager"], BenchCase())[0]]


def test_the_engines_that_the_gpu_page_names_are_there():
    engines = ROOT / "src" / "noback" / "engines"
    page = (DOCS / "concepts" / "gpu.md").read_text().partition("| in `src/noback/engines` |")[2].partition("\n\n")[0]
    named = [name for line in page.splitlines() for name in re.findall(r"`([\w/]+(?:\.py|/))`", line.split(" | ")[0])]
    assert len(named) >= 12
    assert [name for name in named if not (engines / name).exists()] == []


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
        "`noback train --readout words --steps 250` |": learned(held["reviews"]["runs"][0]),
        "`noback train` |": learned(held["reviews"]["runs"][1]),
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

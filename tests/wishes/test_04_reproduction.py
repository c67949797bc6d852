"""Reproductions of one's own tasks: cells are counted, no foreign figures claimed, all gaps a failure."""

import json

import pytest
import tomli_w

from noback.reporting.folder_table import read_table
from noback.reporting.reproduced import reproduced
from noback.reproduction import grid_of, markdown, reproduce, summarised
from noback.watching import Silent
from tests.conftest import NEGATIVE, POSITIVE, write_rows

TASK = """
name = "mine"
template = "*cls**sent_0*_It_was*mask*.*sep+*"
sentences = ["sentence"]
[words]
0 = "terrible"
1 = "great"
"""


@pytest.fixture
def table(tiny_folder, tmp_path):
    """A grid over a task that is given by the path of its file."""
    (tmp_path / "mine.toml").write_text(TASK)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    rows = [{"sentence": f"{text} {n}", "label": 1} for text in POSITIVE for n in range(3)]
    rows += [{"sentence": f"{text} {n}", "label": 0} for text in NEGATIVE for n in range(3)]
    for split in ("train", "dev"):
        write_rows(tmp_path / "data" / "mine" / f"{split}.jsonl", rows)
    return {
        "model": str(tiny_folder), "data": str(tmp_path / "data"), "tasks": [str(tmp_path / "mine.toml")],
        "shots": [4], "seeds": [1], "test_limit": 8,
        "methods": [
            {"name": "zero-shot", "baseline": "zero-shot"},
            {"name": "MeZO", "options": {"steps": 2, "batch": 4}},
        ],
    }  # fmt: skip


def test_the_cells_of_a_task_given_by_its_path_are_counted_and_belong_to_its_entries(table, tmp_path):
    reproduce(grid_of(table), tmp_path / "out", watcher=Silent())
    found = reproduced(read_table(tmp_path / "out", "reproduction"))
    assert found.planned == len(found.cells) == 2
    assert all(name in found.cells for row in found.rows for entry in row.entries.values() for name in entry.cells)


def test_a_table_without_a_published_figure_claims_none(table, tmp_path, noback):
    grid = grid_of(table)
    result = reproduce(grid, tmp_path / "out", watcher=Silent())
    assert "published" not in markdown(result["rows"], grid)
    assert noback("report", tmp_path / "out")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "RoBERTa-large" not in page
    assert "Hollow points" not in page
    known = grid_of({**table, "tasks": ["sst2"]})
    assert "published figure for FacebookAI/roberta-large" in markdown(summarised(known, {}), known)


@pytest.mark.parametrize("flags", [(), ("--estimate",), ("--json",)])
def test_a_grid_of_which_nothing_ran_fails_with_the_reason(table, tmp_path, noback, flags):
    (tmp_path / "grid.toml").write_text(tomli_w.dumps({**table, "data": str(tmp_path / "nowhere")}))
    code, out, err = noback("reproduce", tmp_path / "grid.toml", "--out", tmp_path / "out", *flags)
    assert code == 2
    assert "nothing of this grid ran; the first gap: data" in err.splitlines()[-1]
    if flags == ("--json",):
        assert json.loads(out)["rows"]


def test_a_grid_with_some_gaps_ends_well(table, tmp_path, noback):
    (tmp_path / "grid.toml").write_text(tomli_w.dumps({**table, "tasks": [*table["tasks"], "rte"]}))
    code, out, _ = noback("reproduce", tmp_path / "grid.toml", "--out", tmp_path / "out")
    assert code == 0
    assert "gap 1" in out

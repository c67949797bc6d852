"""Reproduction: the grid, its resumable course, and its table beside the published one."""

import json
from pathlib import Path

import pytest
import tomli_w

from noback import InputError
from noback.reproduction import estimate, grid_of, markdown, published, read_grid, reproduce, summarised
from noback.training import Interrupted
from noback.watching import Silent
from tests.conftest import NEGATIVE, POSITIVE, write_rows

ROOT = Path(__file__).parents[1]
QUICK = {"steps": 2, "batch": 4, "eval_every": 1}


@pytest.fixture
def table(tiny_folder, tmp_path):
    for task in ("sst2", "mr"):
        (tmp_path / "data" / task).mkdir(parents=True)
        texts = [(text, label) for label, found in ((1, POSITIVE), (0, NEGATIVE)) for text in found]
        rows = [{"sentence": f"{text} {n}", "label": label} for text, label in texts for n in range(4)]
        for split in ("train", "dev"):
            write_rows(tmp_path / "data" / task / f"{split}.jsonl", rows)
    return {
        "model": str(tiny_folder),
        "data": str(tmp_path / "data"),
        "tasks": ["sst2", "mr", "rte"],
        "shots": [4],
        "seeds": [13, 21],
        "test_limit": 8,
        "methods": [
            {"name": "zero-shot", "baseline": "zero-shot"},
            {"name": "MeZO", "lrs": [1e-3, 1e-2], "options": QUICK},
            {"name": "MeZO (LoRA)", "options": {**QUICK, "adapter": "lora"}},
            {"name": "FT", "baseline": "adam", "lrs": [1e-4], "options": QUICK},
        ],
    }


def test_a_grid_has_a_cell_for_each_method_task_seed_and_rate(table):
    cells = grid_of(table).cells
    assert len(cells) == 3 * (1 + 2 * 2 + 2 + 2)
    cell = next(one for one in cells if one.name == "sst2-k4-seed21-mezo-lr0.01")
    assert (cell.config.data_seed, cell.config.seed, cell.config.rule.lr, cell.config.shots) == (21, 21, 1e-2, 4)
    lora = next(one for one in cells if one.name == "mr-k4-seed13-mezo--lora")
    assert (lora.config.adapter.kind, lora.config.lr) == ("lora", 5e-4)


def test_a_grid_runs_to_its_end_with_every_cell_or_its_named_gap(table, tmp_path):
    grid = grid_of(table)
    result = reproduce(grid, tmp_path / "out", watcher=Silent())
    assert len(result["cells"]) == len(grid.cells)
    for row in result["rows"]:
        for task in ("sst2", "mr"):
            assert 0 <= row["tasks"][task]["mean"] <= 100
            assert "gap" not in row["tasks"][task]
        assert "rte" in row["tasks"]["rte"]["gap"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "gap 1" in text
    assert "[90.5]" not in text  # that is k = 16; this grid has k = 4
    assert "[79.0]" in text  # zero-shot has no k


def test_the_best_rate_is_chosen_by_validation_and_seeds_are_averaged(table):
    grid = grid_of(table)
    cells = {cell.name: {"validation": 0.5, "test": 0.5} for cell in grid.cells}
    cells["sst2-k4-seed13-mezo-lr0.001"] = {"validation": 0.7, "test": 0.6}
    cells["sst2-k4-seed13-mezo-lr0.01"] = {"validation": 0.6, "test": 0.9}  # better on test, which must not count
    cells["sst2-k4-seed21-mezo-lr0.01"] = {"validation": 0.9, "test": 0.8}
    row = summarised(grid, cells)[1]
    entry = row["tasks"]["sst2"]
    assert (entry["seeds"], entry["lrs"], entry["mean"]) == (2, [1e-3, 1e-2], 70.0)
    assert entry["std"] == pytest.approx(14.14, abs=0.01)
    del cells["sst2-k4-seed21-mezo-lr0.01"], cells["sst2-k4-seed21-mezo-lr0.001"]
    entry = summarised(grid, cells)[1]["tasks"]["sst2"]
    assert (entry["seeds"], entry["std"], entry["gap"]) == (1, None, "not run yet")


def test_a_stopped_grid_goes_on_where_it_was_and_runs_no_cell_twice(table, tmp_path):
    grid = grid_of({**table, "tasks": ["sst2"]})
    whole = reproduce(grid, tmp_path / "whole", watcher=Silent())
    asked = iter([False] * 5 + [True] + [False] * 999)
    with pytest.raises(Interrupted, match="goes on"):
        reproduce(grid, tmp_path / "stopped", watcher=Silent(), stop=lambda: next(asked))
    done = sorted((tmp_path / "stopped" / "cells").iterdir())
    times = {path: path.stat().st_mtime_ns for path in done}
    assert 0 < len(done) < len(grid.cells)
    went_on = reproduce(grid, tmp_path / "stopped", watcher=Silent())
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert went_on["rows"] == whole["rows"]


def test_a_folder_of_another_grid_is_refused(table, tmp_path):
    small = {**table, "tasks": ["sst2"], "methods": table["methods"][:1]}
    reproduce(grid_of(small), tmp_path / "out", watcher=Silent())
    with pytest.raises(InputError, match="another grid"):
        reproduce(grid_of({**small, "seeds": [42]}), tmp_path / "out", watcher=Silent())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        reproduce(grid_of(small), tmp_path / "full", watcher=Silent())


def test_the_estimate_counts_forwards_and_names_gaps_beforehand(table):
    found = estimate(grid_of(table), Silent())
    assert found["forwards"] == 2 * (2 * 2 * 2 * 2 + 2 * 2 * 2 + 2 * 2)  # two tasks; the third is a gap
    assert set(found["gaps"]) == {"rte"}
    assert found["seconds"] >= 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": ["sst2"]}, "unknown entry 'task'; did you mean 'tasks'"),
        ({"tasks": "sst2"}, "entry 'tasks' of the grid is 'sst2'; expected a list"),
        ({"seeds": []}, "entry 'seeds' of the grid is"),
        ({"shots": [0]}, "shots is 0"),
        ({"methods": [{"lrs": [1e-3]}]}, "expected a table with a name"),
        ({"methods": [{"name": "x", "baseline": "adan"}]}, "baseline of method 'x' is 'adan'"),
        ({"methods": [{"name": "x", "options": {"stepz": 2}}]}, "unknown option 'stepz'"),
        ({"methods": [{"name": "x", "lrs": [-1.0]}]}, "an lr of method 'x' is -1.0"),
        ({"methods": [{"name": "x", "lrs": 1e-4}]}, "expected a text as name, a list as lrs"),
        ({"methods": [{"name": "x", "options": 3}]}, "a table as options"),
        ({"methods": [{"name": "x", "options": {"task": "rte"}}]}, "which is the grid's own"),
        ({"tasks": [1]}, "a task of the grid is 1; expected a text"),
        ({"test_limit": 8.9}, "test_limit is 8.9"),
        ({"seeds": [-1]}, "a seed of the grid is -1"),
        ({"methods": [{"name": "x"}, {"name": "x"}]}, "twice"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(table, change, said):
    with pytest.raises(InputError, match=said):
        grid_of({**table, **change})


@pytest.mark.parametrize("name", ["table18-mini.toml", "table18.toml"])
def test_the_shipped_grids_are_sound_and_stand_beside_the_published_table(name):
    grid = read_grid(ROOT / "examples" / name)
    rows = summarised(grid, {})
    for row in rows:
        for task in grid.tasks:
            assert "published" in row["tasks"][task], (row["method"], task)
    assert "not run yet" in markdown(rows, grid)
    assert published()["MeZO"]["16"]["sst2"] == [90.5, 1.2]


def test_the_command_runs_a_grid_and_prints_its_table(table, tmp_path, noback):
    small = {**table, "tasks": ["sst2"], "methods": table["methods"][:1]}
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(small))
    code, out, err = noback("reproduce", tmp_path / "grid.toml", "--estimate", "--json")
    assert code == 0, err
    assert json.loads(out)["cells"] == 1
    code, out, err = noback("reproduce", tmp_path / "grid.toml", "--out", tmp_path / "out")
    assert code == 0, err
    assert "| zero-shot | - |" in out
    assert "1 cells" in err


def test_a_gap_is_tried_again_and_a_damaged_cell_is_named(table, tmp_path):
    """Data that was missing the first time may be there the next."""
    small = {**table, "tasks": ["sst2"], "methods": table["methods"][:1]}
    data = Path(table["data"]) / "sst2"
    data.rename(data.with_name("away"))
    first = reproduce(grid_of(small), tmp_path / "out", watcher=Silent())
    assert "sst2" in first["rows"][0]["tasks"]["sst2"]["gap"]
    data.with_name("away").rename(data)
    again = reproduce(grid_of(small), tmp_path / "out", watcher=Silent())
    assert "gap" not in again["rows"][0]["tasks"]["sst2"]
    (tmp_path / "out" / "cells" / "sst2-k4-seed13-zero-shot.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        reproduce(grid_of(small), tmp_path / "out", watcher=Silent())

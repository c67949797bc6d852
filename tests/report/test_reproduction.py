"""The page of a reproduction."""

import json

import pytest

from noback.errors import InputError
from noback.reporting.folder_table import read_table
from noback.reporting.reproduced import reproduced
from tests.report.conftest import GRID, write_reproduction

EVIL = "<script>alert(1)</script> | no data"


@pytest.fixture
def folder(tmp_path):
    """Two methods on two tasks: MeZO chose between two learning rates, and rte has no data."""
    return write_reproduction(tmp_path / "grid", gap=EVIL)


def figures_in(folder):
    whole = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads(whole.split('id="figures">')[1].split("</script>")[0])


def change(folder, **values):
    """Put other values into the file; None takes a key out."""
    path = folder / "reproduction.json"
    found = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def rows_of(markdown):
    return {line.split("|")[1].strip(): line for line in markdown.splitlines() if line.startswith("| ")}


def test_the_figures_on_the_page_are_those_of_the_file(folder, page_text):
    text = page_text(folder)
    assert '<span data-figure="MeZO-16-sst2" data-value="61.53">61.5 (6.1)</span>' in text
    assert 'data-figure="MeZO-16-sst2-published" data-value="90.5">[90.5 (1.2)]<' in text
    assert '<span data-figure="zero-shot-0-sst2" data-value="50.0">50.0</span>' in text
    assert "Reproduction with mini" in text
    assert "a &lt;small&gt; grid" in text
    assert "noback 0.1.0, torch 2.13.0" in text


def test_a_published_figure_says_whose_it_is(folder, page_text):
    assert "RoBERTa-large, 100,000 steps of MeZO, five seeds" in page_text(folder)


def test_chosen_learning_rates_are_named_where_there_was_a_choice(folder, page_text):
    text = page_text(folder)
    assert '<span class="beneath">lr 1e-05 x2, 3e-05</span>' in text
    assert text.count(">lr ") == 1


def test_the_cost_of_a_method_is_the_sum_of_its_cells_and_their_largest_memory(folder, page_text):
    text = page_text(folder)
    assert 'data-figure="MeZO-cells" data-value="12"' in text
    assert 'data-figure="MeZO-forwards" data-value="1200"' in text
    assert 'data-figure="MeZO-seconds" data-value="63.0"' in text
    assert 'data-figure="MeZO-peak-memory" data-value="1000005"' in text
    assert 'data-figure="zero-shot-forwards" data-value="10"' in text
    assert "Peak memory is that of the whole process" in text


def test_a_gap_is_marked_in_the_table_and_its_sentence_is_listed(folder, page_text):
    text = page_text(folder)
    assert text.count("gap 1") == 2  # each method on rte
    assert '<td class="number" data-figure="gap-1" data-value="7">7</td>' in text
    assert "14 cells ended in 65 s; 7 gaps" in text


def test_a_gap_of_one_learning_rate_stands_beneath_the_figure(folder, page_text):
    cells = json.loads((folder / "reproduction.json").read_text())["cells"]
    change(folder, cells={**cells, "sst2-k16-seed21-mezo-lr3e-05": {"gap": "the loss is not a number"}})
    text = page_text(folder)
    assert '61.5 (6.1)</span><span class="beneath">gap 2</span>' in text
    assert "<td>the loss is not a number</td>" in text


def test_html_in_a_gaps_sentence_is_shown_and_never_interpreted(folder, page_text):
    text = page_text(folder)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | no data" in text
    whole = (folder / "report.html").read_text(encoding="utf-8")
    assert EVIL not in whole
    assert whole.count("</script>") == 3  # the figures, plotly, and the page's own


def test_a_task_or_method_named_like_markup_cannot_break_the_figures(tmp_path, page_text):
    evil = '"</script><b>'
    folder = write_reproduction(tmp_path / "grid", tasks=(evil, "rte"), method=evil)
    assert "<b>" not in page_text(folder)
    assert (folder / "report.html").read_text(encoding="utf-8").count("</script>") == 3
    labels = figures_in(folder)["task-0"]["layout"]["yaxis"]["ticktext"]
    assert labels == ["zero-shot", '"&lt;/script&gt;&lt;b&gt;']


def test_each_task_has_a_chart_of_what_was_found_beside_what_is_published(folder, page_text):
    page_text(folder)
    figures = figures_in(folder)
    assert list(figures) == ["task-0"]  # nothing is known of rte
    here, published = figures["task-0"]["data"]
    assert here["x"] == [50.0, 61.53]
    assert here["error_x"]["array"] == [None, 6.07]
    assert published["x"] == [79.0, 90.5]
    assert published["marker"]["color"] == "var(--surface)"


def test_a_grid_that_has_only_begun_has_a_page_that_says_so(folder, page_text):
    change(folder, rows=[], cells={}, seconds=None)
    text = page_text(folder)
    assert '<p class="state">not run yet</p>' in text
    assert "no cell of its grid has ended" in text
    assert "shots per label (k)" in text


def test_what_has_not_run_yet_is_said_in_its_place(tmp_path, page_text):
    folder = write_reproduction(tmp_path / "grid", gap="not run yet")
    cells = json.loads((folder / "reproduction.json").read_text())["cells"]
    change(folder, cells={name: cell for name, cell in cells.items() if "gap" not in cell})
    text = page_text(folder)
    assert text.count('<span class="beneath">not run yet</span>') == 2
    assert "not finished: 7 of 14 cells ended" in text
    assert "gap 1" not in text


def test_seeds_that_are_missing_are_counted(folder, page_text):
    rows = json.loads((folder / "reproduction.json").read_text())["rows"]
    rows[1]["tasks"]["sst2"].update(seeds=1, std=None, gap="not run yet")
    change(folder, rows=rows)
    text = page_text(folder)
    assert '>61.5</span><span class="beneath">1 of 3 seeds</span>' in text


@pytest.mark.parametrize("key", ["grid", "versions", "cells", "seconds"])
@pytest.mark.parametrize("value", [None, 3, [3], {"methods": [3], "tasks": 3}])
def test_any_one_key_that_is_missing_or_odd_leaves_a_page(folder, page_text, key, value):
    change(folder, **{key: value})
    assert "61.5 (6.1)" in page_text(folder)


@pytest.mark.parametrize(
    "row", [{}, {"method": "lone"}, {"method": "MeZO", "shots": 16, "tasks": {"sst2": None, "rte": {"published": []}}}]
)
def test_a_row_may_know_nothing_but_its_method(folder, page_text, row):
    change(folder, rows=[row])
    assert "not run yet" in page_text(folder)


def test_several_numbers_of_shots_are_told_apart_in_the_charts(folder, page_text):
    rows = json.loads((folder / "reproduction.json").read_text())["rows"]
    change(folder, rows=[*rows, {**rows[1], "shots": 512}])
    page_text(folder)
    labels = figures_in(folder)["task-0"]["layout"]["yaxis"]["ticktext"]
    assert labels == ["zero-shot", "MeZO, k 16", "MeZO, k 512"]


def test_the_markdown_is_the_table_with_its_gaps(folder, make_report):
    out, _ = make_report(folder, "--markdown")
    rows = rows_of(out)
    assert rows["zero-shot"].startswith("| zero-shot |")
    assert r"| MeZO | 16 | 61.5 (6.1) · \[90.5 (1.2)\] · lr 1e-05 x2, 3e-05 | gap 1 · \[64.0 (3.3)\] |" in out
    assert r"| 1 | \<script\>alert(1)\</script\> \| no data | 7 |" in out
    assert not (folder / "report.html").exists()


def test_json_names_the_kind(folder, make_report):
    assert json.loads(make_report(folder, "--json")[0])["kind"] == "reproduction"


def test_a_reproduction_beside_runs_is_refused(folder, folders, make_report):
    with pytest.raises(InputError, match="report it alone"):
        make_report(folder, folders.run("other"))


def test_a_damaged_reproduction_is_refused_in_a_sentence(folder, make_report):
    (folder / "reproduction.json").write_text("{")
    with pytest.raises(InputError, match=r"reproduction\.json"):
        make_report(folder)


@pytest.mark.parametrize("shots", [[16], [16, 512]])
@pytest.mark.parametrize("lrs", [[None], [1e-05, 1, 0.05]])
def test_the_cells_of_the_rows_are_named_as_the_grid_names_them(folder, shots, lrs):
    from noback.reproduction import grid_of, summarised

    tried = {"lrs": [lr for lr in lrs if lr is not None]}
    methods = [GRID["methods"][0], *({"name": name, "lrs": lrs} for name in ("MeZO", "MeZO (LoRA)"))]
    grid = grid_of({**GRID, "shots": shots, "methods": [methods[0], *({**one, **tried} for one in methods[1:])]})
    change(folder, grid={**GRID, "shots": shots, "methods": methods}, rows=summarised(grid, {}), cells={})
    rows = reproduced(read_table(folder, "reproduction")).rows
    names = [name for row in rows for entry in row.entries.values() for name in entry.cells]
    assert sorted(names) == sorted(cell.name for cell in grid.cells)

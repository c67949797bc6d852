"""The pages of a comparison and of a search for eps."""

import json

import pytest

from noback.errors import InputError


def row(name, objective, **more):
    return {
        "objective": objective, "name": name, "eps": 1e-3, "zero_slope_share": 0.25, "mean_abs_slope": 0.5,
        "min_abs_slope": 0.0, "max_abs_slope": 2.5, "first_loss": 0.7, "last_loss": 0.6, "before": 0.6, "after": 0.78,
        "best": 0.8, "examples": 400, "forwards": 80, "seconds": 12.5, "verdict": "learning", **more,
    }  # fmt: skip


@pytest.fixture
def comparison(folders):
    """A folder with two of the three runs that its rows name."""
    folder = folders.parent / "cmp"
    folders.run("cmp/second", scale=10.0)
    folders.run("cmp/third")
    rows = [row("first", "gone <b>"), row("second", "accuracy"), row("third", "cross-entropy", best=None, seconds=None)]
    write(folder / "comparison.json", rows=rows, task="reviews", steps=40, batch=64, config={"model": "mini"})
    return folder


def write(path, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": path.stem, **values}))


@pytest.fixture
def search(tmp_path):
    rows = [
        {"objective": objective, "eps": eps, "nonzero_share": share, "mean_abs_slope": slope, "agreement": agreement,
         "same_sign": 0.75, "curvature": -1e-5, "mean_abs_curvature": 2e-5}
        for objective, eps, share, slope, agreement in [
            ("cross-entropy", 1e-2, 1.0, 3.5, 0.5), ("cross-entropy", 1e-3, 1.0, 3.0, 1.0),
            ("accuracy", 1e-3, 0.25, 20.0, 1.0), ("accuracy", 1e-4, 0.0, 0.0, None),
        ]
    ]  # fmt: skip
    told = [
        {"objective": "cross-entropy", "eps": 1e-3, "reason": "it is steady | there"},
        {"objective": "accuracy", "eps": None, "reason": "no eps has enough slopes"},
    ]
    write(tmp_path / "eps" / "epsilon.json", rows=rows, recommendations=told, reference=1e-3, seconds=9.0, forwards=64)
    return tmp_path / "eps"


def figures_in(folder):
    whole = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads(whole.split('id="figures">')[1].split("</script>")[0])


def test_a_comparison_has_a_row_and_a_point_for_each_objective(comparison, page_text):
    text = page_text(comparison)
    assert "3 runs compared" in text
    assert 'data-figure="second-best" data-value="0.8"' in text
    assert "gone &lt;b&gt;" in text
    points = figures_in(comparison)["test-accuracy"]["data"]
    assert [trace["x"] for trace in points] == [[0.6, 0.8], [0.6, 0.8], [0.6, 0.78]]


def test_a_table_names_the_method_that_made_it(comparison, page_text):
    table = json.loads((comparison / "comparison.json").read_text())
    table["config"] |= {"estimator": {"kind": "one_sided"}, "rule": {"kind": "momentum"}}
    (comparison / "comparison.json").write_text(json.dumps(table))
    assert "model mini · estimator one_sided · rule momentum · batch 64" in page_text(comparison)


def test_a_comparisons_curves_keep_the_colours_of_their_rows(comparison, page_text):
    page_text(comparison)
    traces = figures_in(comparison)["accuracy"]["data"]
    assert [(trace["name"], trace["line"]["color"]) for trace in traces] == [
        ("accuracy", "var(--series-2)"),
        ("cross-entropy", "var(--series-3)"),
    ]


def test_rows_of_several_eps_are_told_apart_by_it(folders, page_text):
    folder = folders.parent / "cmp"
    write(folder / "comparison.json", rows=[row("one", "accuracy"), row("two", "accuracy", eps=0.01)])
    text = page_text(folder)
    assert "accuracy, eps 0.001" in text
    assert "accuracy, eps 0.01<" in text


def test_the_size_of_slopes_is_drawn_on_a_logarithmic_axis(comparison, page_text):
    page_text(comparison)
    assert figures_in(comparison)["compared-sizes"]["layout"]["xaxis"]["type"] == "log"


def test_an_unfinished_comparison_says_so(folders, page_text):
    folder = folders.parent / "cmp"
    write(folder / "comparison.json", rows=[row("one", "one")], finished=False)
    assert "not finished" in page_text(folder)


def test_a_row_may_know_nothing_but_its_objective(folders, page_text):
    folder = folders.parent / "cmp"
    write(folder / "comparison.json", rows=[{"objective": "lone"}])
    assert "lone" in page_text(folder)


def test_a_row_cannot_name_a_run_outside_the_folder(folders, make_report):
    folder = folders.parent / "cmp"
    folders.run("elsewhere")
    write(folder / "comparison.json", rows=[row("../elsewhere", "one")])
    assert json.loads(make_report(folder, "--json")[0])["runs"] == []


def test_a_search_for_eps_shows_what_it_recommends_and_why(search, page_text):
    text = page_text(search)
    assert 'data-figure="recommended-cross-entropy" data-value="0.001"' in text
    assert "it is steady | there" in text
    assert "no eps has enough slopes" in text


def test_each_objective_has_a_line_against_eps_with_gaps_for_what_is_not_known(search, page_text):
    page_text(search)
    figures = figures_in(search)
    assert all(figure["layout"]["xaxis"]["type"] == "log" for figure in figures.values())
    first, second = figures["epsilon-mean_abs_slope"]["data"]
    assert (first["x"], first["y"]) == ([1e-3, 1e-2], [3.0, 3.5])
    assert second["y"] == [None, 20.0]
    assert figures["epsilon-agreement"]["data"][1]["y"] == [None, 1.0]


def test_the_markdown_of_a_search_escapes_its_reasons(search, make_report):
    assert "it is steady \\| there" in make_report(search, "--markdown")[0]


def test_a_table_beside_runs_is_refused(comparison, folders, make_report):
    with pytest.raises(InputError, match="report it alone"):
        make_report(comparison, folders.run("other"))


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}', '{"rows": [3]}', "[" * 100_000])
def test_a_damaged_table_is_refused_in_a_sentence(folders, make_report, text):
    folder = folders.parent / "cmp"
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(text)
    with pytest.raises(InputError, match=r"comparison\.json"):
        make_report(folder)

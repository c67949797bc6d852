"""Where a report goes, what is printed, and what is refused."""

import json

import pytest

from noback.errors import InputError
from noback.reporting.markdown import escaped, markdown
from tests.report.conftest import CONFIG, LABELS, metrics_of


def test_one_run_has_its_report_in_its_folder(folders, make_report):
    path = folders.run()
    out, err = make_report(path)
    assert str(path / "report.html") in out
    assert err == ""
    assert (path / "report.html").is_file()


def test_several_runs_have_theirs_right_here(folders, make_report, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    out, _ = make_report(folders.run("a"), folders.run("b"), "--json")
    assert json.loads(out)["report"] == "report.html"
    assert (tmp_path / "report.html").is_file()


def test_json_is_one_object_with_the_path_and_the_runs(folders, make_report):
    path = folders.run("a")
    values = json.loads(make_report(path, "--json")[0])
    assert values["report"] == str(path / "report.html")
    assert values["runs"] == ["a"]
    assert values["kind"] == "run"
    assert values["states"] == ["finished"]


def test_the_same_run_makes_the_same_bytes(folders, make_report, tmp_path):
    path = folders.run()
    make_report(path, "--out", tmp_path / "1.html")
    make_report(path, "--out", tmp_path / "2.html")
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_a_report_replaces_the_older_one_and_leaves_nothing_beside_it(folders, make_report):
    path = folders.run()
    (path / "report.html").write_text("old")
    before = {file.name for file in path.iterdir()}
    make_report(path)
    assert {file.name for file in path.iterdir()} == before
    assert (path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_run_given_twice_is_shown_once_and_that_is_said(folders, make_report):
    path = folders.run("a")
    out, err = make_report(path, path.parent / "." / "a", f"{path}/", "--json")
    assert json.loads(out)["runs"] == ["a"]
    assert "given before" in err


def test_runs_of_one_name_are_told_apart_by_their_parents(folders, make_report, tmp_path):
    out, _ = make_report(folders.run("x/run"), folders.run("y/run"), "--json", "--out", tmp_path / "r.html")
    assert json.loads(out)["runs"] == ["x/run", "y/run"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{runs}/none"], "does not exist"),
        (["{runs}"], "no run folder"),
        (["{run}", "--out", "{runs}/none/report.html"], "does not exist"),
        (["{run}", "--out", "{runs}"], "is a folder"),
        (["{run}", "--out", "{run}/run.toml/report.html"], "does not exist"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(folders, make_report, words, sentence):
    path = folders.run()
    with pytest.raises(InputError, match=sentence) as caught:
        make_report(*(word.format(run=path, runs=folders.parent) for word in words))
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_refused_and_left_as_it_was(folders, make_report, monkeypatch):
    path = folders.run()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        make_report(path)
    assert not [file for file in path.iterdir() if "report" in file.name]


def test_half_a_surrogate_in_a_text_stops_no_report(folders, make_report):
    lines = metrics_of(["\ud83d", "great"], 40)
    path = folders.run(labels=["\ud83d", "great"], metrics=lines)
    make_report(path)
    assert "great" in (path / "report.html").read_text(encoding="utf-8")


def test_markdown_is_printed_and_no_page_is_written(folders, make_report):
    path = folders.run()
    out, _ = make_report(path, "--markdown")
    assert out.startswith("# run\n")
    assert "**learning**" in out
    assert "| before | - | 60.0% | 55.1% to 64.7% |" in out
    assert "noback train --model mini" in out
    assert not (path / "report.html").exists()


def test_markdown_goes_to_a_file_as_well_where_one_is_named(folders, make_report, tmp_path):
    out, _ = make_report(folders.run(), "--markdown", "--out", tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text(encoding="utf-8") == out


def test_markdown_keeps_texts_from_being_markup(folders, make_report):
    assert escaped("a|b\n`c` <d>") == r"a\|b \`c\` \<d\>"
    out, _ = make_report(folders.run("a|b`c"), "--markdown")
    assert out.startswith("# a\\|b\\`c\n")
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_a_command_with_backticks_stays_inside_its_fence():
    from noback.reporting.blocks import Command, Page, Section

    page = Page("t", "", "", (Section("s", (Command(("echo", "```")),), in_summary=True),))
    assert "````sh\necho ```\n````" in markdown(page)


def test_runs_of_two_methods_are_told_apart(folders, make_report, tmp_path):
    rule = {**CONFIG["rule"], "kind": "momentum", "beta": 0.7, "window": 10}
    runs = folders.run("plain"), folders.run("other", config={**CONFIG, "rule": rule})
    rows = [line.split("|") for line in make_report(*runs, "--out", tmp_path / "r.md", "--markdown")[0].splitlines()]
    named = {row[1].strip(): [cell.strip() for cell in row[4:6]] for row in rows if len(row) > 12}
    assert named["plain"] == ["two\\_sided", "sgd"]
    assert named["other"] == ["two\\_sided", "momentum"]


def test_several_runs_have_a_row_each(folders, make_report, tmp_path):
    lines = [line for line in metrics_of(LABELS, 40) if line["kind"] != "zero_shot"]
    runs = [folders.run("first"), folders.run("second", metrics=lines), folders.empty("third")]
    out, _ = make_report(*runs, "--markdown")
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("| ")}
    assert "60.0% (55.1 to 64.7) | 81.2% (77.1 to 84.8)" in rows["first"]
    assert "| - | 81.2% (77.1 to 84.8)" in rows["second"]
    assert "nothing to judge" in rows["third"]


def test_examples_in_two_sets_stand_in_the_table_of_what_was_run(folders, make_report):
    lines = metrics_of(LABELS, 40)
    shared = {"of": "test", "within": "train", "examples": 100, "exact": 70, "near": 3}
    lines[0]["overlap"] = {"shared": [shared], "two_labels": 2}
    out, _ = make_report(folders.run(metrics=lines), "--markdown")
    assert "73 of 100 test examples in train (70 exactly); 2 texts with more than one label" in out


@pytest.mark.parametrize("overlap", [None, {"shared": [], "two_labels": 0}, 5, {"shared": 5, "two_labels": "many"}])
def test_a_run_whose_sets_share_nothing_or_that_does_not_say_has_no_such_row(overlap, folders, make_report):
    lines = metrics_of(LABELS, 40)
    lines[0]["overlap"] = overlap
    out, _ = make_report(folders.run(metrics=lines), "--markdown")
    assert "examples in two sets" not in out

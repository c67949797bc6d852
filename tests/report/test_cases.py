"""Runs in every condition: still going, stopped, empty, torn, damaged, of older versions, with HTML in their texts."""

import fcntl
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from noback.errors import DamagedError
from noback.reporting.blocks import Chart, Charts, Page, Section
from noback.reporting.page import html
from noback.reporting.reading import read_run
from tests.report.conftest import CONFIG, LABELS, metrics_of, raised_eps, write_lines

HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""
EVIL = "<script>alert(1)</script>"


def test_a_finished_run_says_so(folders, page_text):
    text = page_text(folders.run())
    assert "finished: 40 of 40 steps in 25.5 s" in text
    assert 'data-verdict="learning"' in text


def test_a_run_whose_lock_another_process_holds_is_still_going(folders, page_text):
    path = folders.run(steps=12)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert "still going: step 12 of 40" in page_text(path)
        holder.communicate()
    assert "stopped at step 12 of 40" in page_text(path)


def test_reading_a_run_lets_go_of_its_lock(folders):
    path = folders.run(steps=12)
    assert not read_run(path, "run").going
    with open(path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the reader still held it
        assert read_run(path, "run").going


def test_a_run_without_a_lock_file_is_not_going_and_gets_none(folders):
    path = folders.run(steps=12)
    (path / "lock").unlink()
    assert read_run(path, "run").state == "stopped"
    assert not (path / "lock").exists()


def test_a_stopped_run_says_how_to_go_on(folders, page_text):
    path = folders.run(steps=12)
    assert f"noback resume {path}" in page_text(path)


def test_a_run_that_never_began_has_a_page_that_says_so(folders, page_text):
    text = page_text(folders.empty())
    assert "This run is empty" in text
    assert "noback train" in text


def test_a_run_without_steps_is_empty_and_keeps_what_it_knows(folders, page_text):
    text = page_text(folders.run(steps=0))
    assert "empty: no step was taken" in text
    assert 'data-figure="accuracy-before" data-value="0.6"' in text


def test_a_torn_last_record_is_noted_in_bytes(folders, page_text):
    path = folders.run()
    with open(path / "journal", "ab") as file:
        file.write(b"torn!")
    assert "The last 5 bytes of the journal are a torn record" in page_text(path)


def test_a_journal_damaged_in_the_middle_is_refused(folders, page_text):
    path = folders.run()
    data = bytearray((path / "journal").read_bytes())
    data[-200] ^= 0xFF
    (path / "journal").write_bytes(data)
    with pytest.raises(DamagedError, match="damaged"):
        page_text(path)


def test_without_metrics_the_journal_alone_makes_the_page(folders, page_text):
    path = folders.run()
    (path / "metrics.jsonl").unlink()
    text = page_text(path)
    assert "from its journal alone" in text
    assert 'id="chart-loss"' in text
    assert 'id="chart-accuracy"' in text
    assert "Worst mistakes" not in text


def test_torn_and_foreign_lines_of_metrics_are_passed_over(folders, page_text):
    path = folders.run()
    with open(path / "metrics.jsonl", "a") as file:
        file.write('null\n3\n["kind"]\n{"kind": "test", "at": "best", "accu')
    assert 'data-figure="accuracy-best" data-value="0.8125"' in page_text(path)


def test_lines_of_older_versions_leave_sections_out_and_break_nothing(folders, page_text):
    bare = [{"kind": line["kind"], "step": line.get("step"), "at": line.get("at")} for line in metrics_of(LABELS, 40)]
    text = page_text(folders.run(metrics=bare))
    assert "Training loss" in text
    assert "Worst mistakes" not in text
    assert "Test accuracy" not in text


@pytest.mark.parametrize(
    "missing", ["accuracy", "objective", "examples", "confusion", "step", "loss", "score", "two_eps"]
)
def test_any_one_missing_key_leaves_a_page(folders, page_text, missing):
    lines = [{key: value for key, value in line.items() if key != missing} for line in metrics_of(LABELS, 40)]
    assert "To repeat it" in page_text(folders.run(metrics=lines))


def test_a_label_that_never_occurs_divides_nothing_by_zero(folders, page_text):
    confusion = [[0, 0, 0], [100, 300, 0], [0, 0, 0]]
    lines = [
        {**line, "confusion": confusion} if "confusion" in line else line for line in metrics_of(["a", "b", "c"], 40)
    ]
    text = page_text(folders.run(metrics=lines, labels=["a", "b", "c"]))
    assert 'data-figure="confusion-1-1" data-value="300"' in text
    assert 'data-figure="recall-1" data-value="0.75"' in text
    assert 'data-figure="recall-0"' not in text


def test_one_answer_to_everything_is_warned_of(folders, page_text):
    lines = metrics_of(LABELS, 40)
    assert "one label to nearly everything" not in page_text(folders.run("varied", metrics=lines))
    for line in lines:
        if line.get("at") == "best":
            line["confusion"] = [[200, 0], [200, 0]]
    assert "one label to nearly everything" in page_text(folders.run("one-sided", metrics=lines))


def test_html_in_labels_and_texts_is_shown_and_never_interpreted(folders, page_text):
    labels = [EVIL, '"a" & <b>b</b>']
    path = folders.run(labels=labels)
    lines = metrics_of(labels, 40)
    next(line for line in lines if line["kind"] == "mistakes")["mistakes"][0]["sentences"] = ["</script><!--", EVIL]
    write_lines(path, lines)
    text = page_text(path)
    whole = (path / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert EVIL not in whole
    assert "<b>b</b>" not in text
    assert whole.count("</script>") == 3  # the figures, plotly, and the page's own


def test_a_run_named_like_markup_cannot_break_the_figures(folders, make_report):
    path = folders.run("</script><script>alert(1)<")
    other = folders.run("other")
    out, _ = make_report(path, other, "--out", folders.parent / "r.html", "--json")
    whole = (folders.parent / "r.html").read_text(encoding="utf-8")
    assert json.loads(out)["runs"][0].endswith("script><script>alert(1)<")
    assert whole.count("</script>") == 3
    figures = whole.split('id="figures">')[1].split("</script>")[0]
    assert json.loads(figures)["loss"]["data"]


def test_the_figures_cannot_end_their_element():
    figure = json.dumps({"name": "</script><!--<script>"})
    page = Page("t", "", "", (Section("s", (Charts((Chart("one", "One", figure),)),)),))
    whole = html(page)
    assert whole.count("</script>") == 3
    inside = whole.split('id="figures">')[1].split("</script>")[0]
    assert "<" not in inside
    assert json.loads(inside) == {"one": {"name": "</script><!--<script>"}}


@pytest.mark.parametrize("steps", [0, 5, 30])
def test_a_run_that_stopped_for_numbers_that_are_none_has_a_page_that_says_so(steps, folders, page_text, make_report):
    lines = [*metrics_of(LABELS, steps), {"kind": "diverged", "step": steps, "found": "the loss is nan"}]
    run = folders.run(steps=steps, metrics=[{**line, "objective": math.nan} for line in lines])  # as 0.1.0 wrote them
    text = page_text(run)
    assert 'data-verdict="diverging"' in text
    assert f"the run stopped at step {steps}: the loss is nan" in text
    assert "try a smaller lr" in text
    assert "noback resume" not in text
    assert "**diverging**" in make_report(run, "--markdown")[0]


def test_what_was_measured_on_the_way_stands_after_the_evidence(folders, page_text):
    text = page_text(folders.run())
    told = ("chance alone gives as much in", "Measured on the way", "slopes of two halves")
    assert [*map(text.index, told)] == sorted(map(text.index, told))


def test_the_noise_of_a_slope_is_in_a_table_and_by_the_verdict_of_bfloat16(folders, page_text, make_report):
    run = folders.run(config={**CONFIG, "dtype": "bfloat16"})
    text = page_text(run)
    assert 'data-figure="noise-10-two_eps" data-value="0.125"' in text
    assert "scored twice gives the same slope; at twice the eps it differs by 12%" in text
    assert "at twice the eps it differs by 12%" in make_report(run, "--markdown")[0]


def test_slopes_are_shown_in_the_unit_that_their_journal_names(folders, make_report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    older, spreads = folders.run("older"), folders.run("spreads", unit="spreads of the losses")
    pages = [
        Path(json.loads(make_report(*runs, "--json")[0])["report"]) for runs in ((older,), (spreads,), (older, spreads))
    ]
    before, alone, both = (page.read_text(encoding="utf-8") for page in pages)
    assert "slope (loss per unit)" in before
    assert "slope (spreads of the losses)" in alone
    assert ", in spreads of the losses" in alone
    assert "slope (each run in a unit of its own)" in both
    assert "(loss per unit)" not in alone + both


def test_a_raised_eps_has_a_chart_of_its_own(folders, page_text):
    assert 'id="chart-eps"' not in page_text(folders.run("steady"))
    assert 'id="chart-eps"' in page_text(folders.run("raised", eps_changes=raised_eps()))


def test_a_damaged_configuration_is_refused_in_a_sentence(folders, page_text):
    path = folders.empty()
    (path / "run.toml").write_text("steps = = 3")
    with pytest.raises(Exception, match="is not TOML"):
        page_text(path)


def test_an_accuracy_that_never_changes_is_drawn_between_possible_shares(folders, page_text):
    lines = [{**line, "accuracy": 0.5} if "accuracy" in line else line for line in metrics_of(LABELS, 40)]
    path = folders.run(metrics=lines)
    page_text(path)
    figures = (path / "report.html").read_text(encoding="utf-8").split('id="figures">')[1].split("</script>")[0]
    assert json.loads(figures)["accuracy"]["layout"]["yaxis"]["range"] == [0.48, 0.52]


def test_a_metric_besides_accuracy_has_its_column(folders, page_text):
    assert 'data-figure="score-best"' not in page_text(folders.run("plain"))
    lines = [{**line, "score": 0.123} if "score" in line else line for line in metrics_of(LABELS, 40)]
    text = page_text(folders.run("matthews", metrics=lines, metric="matthews"))
    assert 'data-figure="score-best" data-value="0.123"' in text


def test_a_report_needs_no_torch(folders):
    path = folders.run()
    code = (
        "import argparse, sys\n"
        "from noback.cli import report\n"
        "parser = argparse.ArgumentParser()\n"
        "report.add(parser)\n"
        "report.run(parser.parse_args(sys.argv[1:]))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (path / "report.html").is_file()

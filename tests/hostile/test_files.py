"""Point 6, files: nothing in a run's folder leads out of it, and nothing makes noback wait for ever."""

import os
import shutil
import socket

import pytest

from noback.files import clear_leftovers, write_whole
from tests.hostile.forging import forge

FILES = ("run.toml", "journal", "metrics.jsonl", "lock", "trained-rows")
UNSOUND = """
[1]
null
"text"
{"kind": 5}
{"seconds": "x"}
{"kind": "validation", "step": "x"}
{"kind": "validation", "step": 2, "seconds": "soon", "accuracy": "all", "objective": null}
{"kind": "validation", "step": 2, "accuracy": 0.5, "objective": 0.5, "score": 0.5, "examples": 8, "confusion": 7}
{"kind": "zero_shot", "accuracy": "high", "score": [], "loss": {}, "examples": null}
{"kind": "slope_noise"}
{"kind": "health", "slopes": "many", "agreement": true}
{"kind": "update"}
{"kind": "start", "labels": 5, "balance": [], "overlap": "much"}
{"kind": "diverged", "step": []}
{"kind": "mistakes", "mistakes": [[1], {"sentences": 5}]}
{"kind": "test", "at": 7, "accuracy": {}}
{"kind": "result", "verdict": 3, "evidence": 4}
""".strip().splitlines()
COMMANDS = {
    "resume": lambda run, out: ("resume", run),
    "evaluate": lambda run, out: ("evaluate", run),
    "predict": lambda run, out: ("predict", run, "a film"),
    "export": lambda run, out: ("export", run, out),
    "replay": lambda run, out: ("replay", run, out),
    "report": lambda run, out: ("report", run),
}


@pytest.mark.parametrize("name", [*FILES, "snapshots", "tensorboard"])
@pytest.mark.parametrize("command", ["resume", "evaluate", "report"])
def test_a_link_in_a_run_folder_is_refused_and_what_it_names_stays_as_it_was(run, tmp_path, noback, name, command):
    outside = tmp_path / "outside"
    if (run / name).is_file() or (run / name).is_dir():
        shutil.move(run / name, outside)
    else:
        outside.mkdir()
    before = contents_of(outside)
    (run / name).symlink_to(outside)
    code, out, err = noback(*COMMANDS[command](run, tmp_path / "out"))
    assert (code, out) == (2, "")
    assert "is a link" in err
    assert contents_of(outside) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(run, noback, monkeypatch, name, kind):
    (run / name).unlink()
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "folder":
        (run / name).mkdir()
    else:
        monkeypatch.chdir(run)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(name)
    code, out, err = noback("resume", run)
    assert (code, out) == (2, "")
    assert "no regular file" in err or "Is a directory" in err


def test_a_journal_by_itself_that_is_a_link_or_a_pipe_is_refused(run, tmp_path, noback):
    (tmp_path / "link").symlink_to(run / "journal")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("link", "is a link"), ("pipe", "no regular file")):
        code, _, err = noback("replay", tmp_path / name, tmp_path / "out")
        assert (code, said in err) == (2, True), err


def test_a_report_is_not_written_through_a_link(run, tmp_path, noback):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    for name in ("report.html", f".report.html.{os.getpid()}"):
        (run / name).symlink_to(outside)
    assert noback("report", run)[0] == 0
    assert outside.read_text() == "precious"
    assert not (run / "report.html").is_symlink()


def test_a_temporary_name_that_is_a_link_is_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / f".page.{os.getpid()}").symlink_to(outside)
    write_whole(tmp_path / "page", "mine")
    assert (outside.read_text(), (tmp_path / "page").read_text()) == ("precious", "mine")


def test_leftovers_of_dead_processes_are_cleared_and_those_of_living_ones_are_not(tmp_path):
    dead = 2**22 + 1  # above the kernel's largest
    for name in (f".page.{dead}", f".page.{os.getppid()}", f".other.{dead}", "page.1"):
        (tmp_path / name).write_text("half")
    (tmp_path / f".page.{dead + 1}").mkdir()
    clear_leftovers(tmp_path, "page")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f".page.{os.getppid()}", f".other.{dead}", "page.1"]
    )
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f".page.{os.getppid()}", "page.1"])


def test_what_a_killed_process_left_is_cleared_at_the_next_start(unfinished, tmp_path, noback):
    dead = 2**22 + 1
    left = [unfinished / "journal.new", unfinished / f".report.html.{dead}", unfinished / f".trained-rows.{dead}"]
    for path in left:
        path.write_text("half")
    (unfinished / "snapshots").mkdir()
    (unfinished / "snapshots" / "step-0000002.new").write_text("half")
    (unfinished / "snapshots" / "step-0000030 (1).safetensors").write_text("a copy")
    (tmp_path / f".out.{dead}").mkdir()
    assert noback("resume", unfinished)[0] == 0
    assert noback("export", unfinished, tmp_path / "out")[0] == 0
    assert not [path for path in [*left, tmp_path / f".out.{dead}"] if path.exists()]
    assert not list((unfinished / "snapshots").glob("*.new"))


def test_an_export_is_whole_or_not_there(run, tmp_path, noback, monkeypatch):
    import transformers

    def fails(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "save_pretrained", fails)
    code, _, err = noback("export", run, tmp_path / "out")
    assert code == 1
    assert "cannot write" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_comparison_does_not_resume_a_run_through_a_link(run, tmp_path, noback):
    import json

    from noback.journal import read_journal

    folder = tmp_path / "comparison"
    folder.mkdir()
    config = read_journal(run / "journal").header["config"]
    table = {"config": config, "objectives": ["cross_entropy"], "eps": [1e-2], "rows": []}
    (folder / "comparison.json").write_text(json.dumps(table))
    (folder / "label-word-cross-entropy-eps-0.01").symlink_to(run)
    code, _, err = noback("resume", folder)
    assert (code, "is a link" in err) == (2, True), err


def test_metrics_of_any_type_stop_neither_a_resume_nor_a_report(unfinished, noback):
    lines = [*UNSOUND, "1" * 5000, "[" * 10_000, "\x00", "\ufffd"]
    (unfinished / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for command in ("report", "resume", "report"):
        code, _, err = noback(command, unfinished)
        assert code == 0, err


@pytest.mark.parametrize(
    ("name", "commands"),
    [("metrics.jsonl", ("report", "resume")), ("run.toml", ("evaluate", "resume")), ("trained-rows", ("evaluate",))],
)
def test_a_file_that_is_large_by_its_holes_is_refused_before_it_is_read(run, noback, name, commands):
    """A few bytes in an archive, and all of memory where they are read."""
    os.truncate(run / name, 2**40)
    for command in commands:
        code, _, err = noback(command, run)
        assert (code, "1,099,511,627,776 bytes" in err) == (2, True), err


def contents_of(path):
    return {one.relative_to(path): one.read_bytes() for one in path.rglob("*")} if path.is_dir() else path.read_bytes()


def test_forging_changes_nothing_that_it_was_not_asked_to_change(run):
    """The tests of received folders stand on it."""
    before = (run / "journal").read_bytes()
    forge(run)
    assert (run / "journal").read_bytes() == before

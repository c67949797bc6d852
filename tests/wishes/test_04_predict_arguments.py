"""What `noback predict` makes of its arguments: a data file's name is no text, and - is stdin."""

import io
import json
import sys

import pytest

from noback import RunConfig, train
from tests.conftest import NEGATIVE, POSITIVE, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_folder):
    place = tmp_path_factory.mktemp("arguments")
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(place / f"{split}.jsonl", rows)
    train(RunConfig(model=str(tiny_folder), data=str(place), steps=1), place / "run")
    return place / "run"


@pytest.fixture
def stdin(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.mark.parametrize("name", ["file.csv", "no/such/file.tsv", "rows.jsonl", "rows.csv.gz"])
def test_a_data_files_name_is_refused_with_the_flag_to_use(name, run, noback):
    code, out, err = noback("predict", run, "a film", name)
    assert (code, out) == (2, "")
    assert f"{name!r} is a data file's name, not a text; to answer its rows say --data {name}" in err


def test_the_path_of_a_file_is_refused_though_it_reads_like_a_sentence(run, noback, tmp_path):
    (tmp_path / "my own rows.csv").write_text("sentence\na film\n")
    code, _, err = noback("predict", run, tmp_path / "my own rows.csv")
    assert code == 2
    assert "--data" in err


def test_a_sentence_that_ends_like_a_file_is_answered_and_that_is_said(run, noback):
    code, out, err = noback("predict", run, "the rows are in file.csv")
    assert (code, out.count("\n"), err.count("\n")) == (0, 1, 1)
    assert "is answered as a text; the rows of a file are answered with --data" in err


def test_a_dash_reads_texts_from_stdin_line_by_line(run, noback, stdin):
    stdin("a warm film\r\n\ndull, \u00fcber-long\n".encode())
    code, out, err = noback("predict", run, "-", "--json")
    assert code == 0, err
    assert [one["text"] for one in json.loads(out)["predictions"]] == ["a warm film", "dull, \u00fcber-long"]


def test_a_dash_may_stand_among_texts(run, noback, stdin):
    stdin(b"second\nthird")
    _, out, _ = noback("predict", run, "first", "-", "fourth")
    assert [line.split("  ")[-1] for line in out.splitlines()] == ["'first'", "'second'", "'third'", "'fourth'"]


def test_a_name_that_is_refused_can_be_answered_through_stdin(run, noback, stdin):
    stdin(b"file.csv\n")
    code, out, _ = noback("predict", run, "-")
    assert code == 0
    assert "'file.csv'" in out


def test_texts_from_stdin_that_are_no_utf_8_are_refused_by_their_line(run, noback, stdin):
    stdin(b"a film\n\xff\n")
    code, _, err = noback("predict", run, "-")
    assert code == 2
    assert "line 2 of stdin is no UTF-8" in err


def test_what_a_person_types_is_answered_line_by_line(run, noback, monkeypatch, capsys):
    """In a terminal an answer comes before the next line is read."""
    answered = []

    class Typed(io.BytesIO):
        def readline(self, size=-1):
            answered.append(capsys.readouterr().out.count("\n"))
            return super().readline(size)

    class Terminal:
        buffer = Typed(b"one\ntwo\nthree\n")

        @staticmethod
        def isatty():
            return True

    monkeypatch.setattr(sys, "stdin", Terminal)
    assert noback("predict", run, "-")[0] == 0
    assert answered == [0, 1, 1, 1]


def test_the_help_names_the_dash_and_the_data(noback, capsys):
    with pytest.raises(SystemExit):
        noback("predict", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "- reads texts from stdin, one a line" in said
    assert "--data reviews.csv --out answers.csv" in said


def test_texts_may_come_after_a_flag(run, noback):
    assert noback("predict", run, "--at", "final", "a film")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is nothing to answer"),
        (["a film", "--out", "a.csv"], "--out is for rows: name their file with --data"),
        (["a film", "--stdin-format", "csv"], "--stdin-format is for rows"),
        (["a film", "--data", "d.csv"], "expected texts or a file, not both"),
        (["--data", "hf:sst2"], "from Python"),
        (["--data", "no/such.csv"], "does not exist"),
        (["--data", "."], "is a folder"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_in_one_sentence(words, said, run, noback):
    code, out, err = noback("predict", run, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("given", [b"", b"\n \n"])
def test_a_stdin_without_a_text_is_refused(given, run, noback, stdin):
    stdin(given)
    code, out, err = noback("predict", run, "-")
    assert (code, out, err) == (2, "", "noback: stdin holds no text to answer; expected one a line\n")

"""Predict in bulk: files, stdin and Python's own data, answered in batches as they come."""

import csv
import gzip
import io
import json
import os
import sys
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import pytest

import noback as package
from noback import Head, RunConfig, evaluate, generate, predict, train, tuned_run
from noback.errors import InputError
from noback.predictions import Source, Target, answered, asked_data, file_source, predict_rows
from noback.tasks import load_spec, stream, stream_rows
from noback.watching import Silent
from tests.conftest import NEGATIVE, POSITIVE, rows_of, write_rows

ROWS = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
TEXTS = [row["sentence"] for row in ROWS]
NEW = ["prediction", "probability_0", "probability_1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_folder):
    """A run of a few steps over labelled sentences."""
    place = tmp_path_factory.mktemp("predict")
    for split in ("train", "validation", "test"):
        write_rows(place / f"{split}.jsonl", ROWS)
    train(RunConfig(model=str(tiny_folder), data=str(place), steps=2, batch=3), place / "run")
    return place / "run"


@pytest.fixture(scope="module")
def run(folder):
    return tuned_run(folder)[0]


@pytest.fixture(scope="module")
def expected(run):
    """The label of each text, asked by itself."""
    alone = [predict(run, [text])[0] for text in TEXTS]
    return [max(chances, key=chances.get) for chances in alone]


@pytest.fixture
def stdin(monkeypatch):
    def give(text):
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
        )

    return give


@pytest.fixture
def refused(noback):
    def call(*arguments):
        code, out, err = noback("predict", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    return call


def write(path, rows=ROWS):
    """Rows in the form that a path's ending names."""
    names = list(rows[0])
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        made = io.StringIO()
        table = csv.writer(made, delimiter="\t" if ".tsv" in path.name else ",")
        table.writerows([names, *([row[name] for name in names] for row in rows)])
        text = made.getvalue()
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(path):
    return [dict(row) for _, row in stream_rows(Path(path))]


# Files


@pytest.mark.parametrize("out", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("data", ["d.csv", "d.tsv", "d.jsonl", "d.csv.gz", "d.tsv.gz"])
def test_a_file_of_any_form_is_answered_into_a_file_of_any_form(data, out, folder, tmp_path, noback, expected):
    code, said, err = noback("predict", folder, "--data", write(tmp_path / data), "--out", tmp_path / out)
    assert code == 0, err
    assert said.startswith("8 rows answered (0: ")
    found = read(tmp_path / out)
    assert [list(row) for row in found] == [["sentence", "label", *NEW]] * 8
    assert [(row["sentence"], str(row["label"])) for row in found] == [(r["sentence"], str(r["label"])) for r in ROWS]
    assert [row["prediction"] for row in found] == expected


def test_each_label_has_its_probability_as_from_python(folder, run, tmp_path, noback):
    noback("predict", folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.jsonl")
    for row, chances in zip(read(tmp_path / "a.jsonl"), predict(run, TEXTS), strict=True):
        assert [row["probability_0"], row["probability_1"]] == pytest.approx([chances["0"], chances["1"]], abs=1e-5)


def test_the_answers_in_bulk_are_those_that_evaluate_counts(folder, run, tmp_path, noback):
    noback("predict", folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.csv")
    right = sum(row["prediction"] == row["label"] for row in read(tmp_path / "a.csv"))
    score, _ = evaluate(run, str(tmp_path / "d.csv"))
    assert right / len(ROWS) == score.accuracy


def test_json_prints_one_object_about_the_file(folder, tmp_path, noback):
    code, out, _ = noback("predict", folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.csv", "--json")
    said = json.loads(out)
    assert (code, said["rows"], sum(said["labels"].values()), said["out"]) == (0, 8, 8, str(tmp_path / "a.csv"))


def test_rows_need_no_label_and_any_label_will_do(folder, tmp_path, noback, expected):
    for name, rows in {
        "none": [{"sentence": text} for text in TEXTS],
        "odd": [{"sentence": text, "label": "no such label"} for text in TEXTS],
        "empty": [{"sentence": text, "label": None} for text in TEXTS],
    }.items():
        data, out = write_rows(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}-answers.jsonl"
        assert noback("predict", folder, "--data", data, "--out", out)[0] == 0
        assert [row["prediction"] for row in read(out)] == expected


@pytest.mark.parametrize("columns", ["text", "text,mark"])
def test_renamed_columns_are_named_as_in_training_and_the_label_may_be_left_out(
    columns, folder, tmp_path, noback, expected
):
    data = write(tmp_path / "d.csv", [{"mark": row["label"], "text": row["sentence"]} for row in ROWS])
    code, _, err = noback("predict", folder, "--data", data, "--out", tmp_path / "a.csv", "--columns", columns)
    assert code == 0, err
    assert [row["prediction"] for row in read(tmp_path / "a.csv")] == expected


def test_a_column_that_is_not_there_is_named_with_those_that_are(folder, tmp_path, refused):
    data = write(tmp_path / "d.csv", [{"text": "a film"}])
    said = refused(folder, "--data", data, "--out", tmp_path / "a.csv")
    assert "has no column 'sentence' (it has: text)" in said
    assert "--columns" in said


def test_a_clash_of_names_is_refused_and_a_prefix_solves_it(folder, tmp_path, noback, refused, expected):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    noback("predict", folder, "--data", write(tmp_path / "d.csv"), "--out", first)
    said = refused(folder, "--data", first, "--out", second)
    assert "has a column 'prediction' already" in said
    assert "--prefix" in said
    assert noback("predict", folder, "--data", first, "--out", second, "--prefix", "again_")[0] == 0
    found = read(second)
    assert list(found[0]) == ["sentence", "label", *NEW, *(f"again_{name}" for name in NEW)]
    assert [row["again_prediction"] for row in found] == [row["prediction"] for row in found] == expected


def test_values_that_are_no_texts_are_kept_in_every_form(folder, tmp_path, noback):
    rows = [{"sentence": "a film", "id": 7, "tags": ["x", "y"], "note": None}]
    data = write_rows(tmp_path / "d.jsonl", rows)
    for name in ("a.csv", "a.jsonl"):
        assert noback("predict", folder, "--data", data, "--out", tmp_path / name)[0] == 0
    (table,), (lines,) = read(tmp_path / "a.csv"), read(tmp_path / "a.jsonl")
    assert {name: table[name] for name in rows[0]} == {
        "sentence": "a film",
        "id": "7",
        "tags": '["x", "y"]',
        "note": "",
    }
    assert {name: lines[name] for name in rows[0]} == rows[0]


# Where answers go


def test_an_out_that_exists_is_refused_before_anything_is_done(folder, tmp_path, refused):
    (tmp_path / "a.csv").write_text("mine")
    assert "exists; choose another --out, or say --overwrite" in refused(
        folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.csv"
    )
    assert (tmp_path / "a.csv").read_text() == "mine"


def test_overwrite_replaces_it(folder, tmp_path, noback):
    (tmp_path / "a.csv").write_text("mine")
    data = write(tmp_path / "d.csv")
    assert noback("predict", folder, "--data", data, "--out", tmp_path / "a.csv", "--overwrite")[0] == 0
    assert len(read(tmp_path / "a.csv")) == 8


@pytest.mark.parametrize(
    ("out", "said"),
    [("a.txt", "expected a file that ends in"), ("no/a.csv", "in a folder that exists"), ("folder.csv", "is a folder")],
)
def test_a_place_that_cannot_be_written_to_is_refused(out, said, folder, tmp_path, refused):
    (tmp_path / "folder.csv").mkdir()
    assert said in refused(folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / out)


@pytest.mark.parametrize("before", [None, "mine"])
def test_ctrl_c_leaves_no_half_file_and_what_was_there(before, folder, tmp_path, noback, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    if before:
        (out / "a.csv").write_text(before)
    monkeypatch.setattr("noback.cli.display.Display.progress", lambda self, what, done, total: stop_at(what, done))
    code, said, err = noback(
        "predict", folder, "--data", write(tmp_path / "d.csv"), "--out", out / "a.csv", "--overwrite"
    )
    assert (code, said) == (130, "")
    assert "stopped after 4 rows; nothing was written" in err
    assert [(path.name, path.read_text()) for path in out.iterdir()] == ([("a.csv", before)] if before else [])


def stop_at(what, done):
    if what == "answering rows" and done == 4:
        raise KeyboardInterrupt


# Streams


def test_stdin_and_stdout_are_a_dash_and_stdin_is_csv(folder, stdin, noback, expected):
    stdin("sentence\n" + "".join(f'"{text}"\n' for text in TEXTS))
    code, out, err = noback("predict", folder, "--data", "-", "--out", "-")
    assert code == 0, err
    head, *rows = csv.reader(io.StringIO(out))
    assert head == ["sentence", *NEW]
    assert [row[1] for row in rows] == expected
    assert "8 rows answered" in err


def test_the_format_of_stdin_and_stdout_can_be_said(folder, stdin, noback, expected):
    stdin("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    _, out, _ = noback("predict", folder, "--data", "-", "--stdin-format", "jsonl")
    assert [json.loads(line)["prediction"] for line in out.splitlines()] == expected
    stdin("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    _, out, _ = noback("predict", folder, "--data", "-", "--stdin-format", "jsonl", "--stdout-format", "tsv")
    assert out.splitlines()[0] == "\t".join(["sentence", *NEW])


@pytest.mark.parametrize("count", [1, 2])
def test_json_lines_that_are_read_as_csv_are_refused_with_the_flag_to_use(count, folder, stdin, refused):
    stdin('{"sentence": "a film"}\n' * count)
    assert "--stdin-format" in refused(folder, "--data", "-")


def test_stdout_takes_the_form_of_the_file(folder, tmp_path, noback):
    _, out, _ = noback("predict", folder, "--data", write(tmp_path / "d.jsonl"))
    assert len([json.loads(line) for line in out.splitlines()]) == 8


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--stdin-format", "jsonl"], "goes with --data -"),
        (["--out", "a.csv", "--stdout-format", "csv"], "goes with --out -"),
        (["--stdout-format", "xml"], "expected csv, tsv, jsonl"),
        (["--json"], "both go to stdout"),
        (["--overwrite"], "goes with --out FILE"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, said, folder, tmp_path, refused):
    assert said in refused(folder, "--data", write(tmp_path / "d.csv"), *flags)


def test_rows_are_answered_as_they_come(run):
    """A batch of stdin is written before the next is read; a file is held eight batches at a time, not whole."""
    read_before, given = [], 0

    def rows():
        nonlocal given
        for line in range(1, 101):
            given += 1
            yield line, {"sentence": f"film {line}"}

    class Sink:
        def write(self, data):
            read_before.append(given)

    done = predict_rows(
        run, Source("rows", rows, total=False), Target(lambda: nullcontext(Sink()), ".jsonl", whole=False)
    )
    size = run.config.batch
    assert done.rows == 100
    assert all(seen <= number - number % size + size for number, seen in enumerate(read_before))
    given = 0
    first = next(answered(run, asked_data(run.task, (row for _, row in rows()), None)))
    assert first[0].place == "row 1"
    assert given == 8 * size


def test_memory_does_not_grow_with_the_file(run, tmp_path):
    """Rows of 4 MB in all are answered with less than a quarter of that at any time."""
    path = write(tmp_path / "d.csv", [{"sentence": "a film", "more": "x" * 2000}] * 2000)
    tracemalloc.start()
    with open(os.devnull, "wb") as nowhere:
        predict_rows(run, file_source(path), Target(lambda: nullcontext(nowhere), ".csv", whole=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_progress_is_told_with_the_number_of_rows(folder, tmp_path):
    calls = []

    class Told(Silent):
        def progress(self, what, done, total):
            calls.append((what, done, total))

    run, _ = tuned_run(folder, watcher=Told())
    sink = io.BytesIO()
    predict_rows(run, file_source(write(tmp_path / "d.csv")), Target(lambda: nullcontext(sink), ".csv", whole=True))
    assert ("answering rows", 8, 8) in calls
    assert ("checking rows", 8, 0) in calls


# Rows from strangers

BAD = {
    "too few fields": (b"sentence,label\na film,1\nalone\n", "line 3 of", "has 1 field; expected 2"),
    "no value": (b'{"sentence": "a film"}\n{"sentence": null}\n', "line 2 of", "no value for column 'sentence'"),
    "no text": (b'{"sentence": "a film"}\n{"sentence": ["a"]}\n', "line 2 of", "has a list in column 'sentence'"),
    "no JSON": (b'{"sentence": "a film"}\n{"sentence"\n', "line 2 of", "is not JSON"),
    "a key twice": (b'{"sentence": "a"}\n{"sentence": "a", "sentence": "b"}\n', "line 2 of", "stands twice"),
    "no UTF-8": (b"sentence,label\na film,1\n\xff\xfe,0\n", "line 3 of", "is no UTF-8"),
    "lone surrogate": (b'{"sentence": "a film"}\n{"sentence": "\\ud800"}\n', "line 2 of", "no UTF-8"),
    "a name twice": (b"sentence,sentence\na,b\n", "the first line of", "twice"),
    "two without a name": (b"sentence,,\na,b,c\n", "the first line of", "twice"),
    "nothing": (b"", "", "holds no rows"),
    "a header alone": (b"sentence,label\n", "", "holds no rows"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_refused_by_its_line_and_nothing_is_written(kind, folder, tmp_path, refused):
    data, line, said = BAD[kind]
    path = tmp_path / ("d.jsonl" if data.startswith(b"{") else "d.csv")
    path.write_bytes(data)
    sentence = refused(folder, "--data", path, "--out", tmp_path / "a.jsonl")
    assert line in sentence
    assert said in sentence
    assert "nothing was written" in sentence
    assert list(tmp_path.iterdir()) == [path]


def test_a_bad_row_of_a_file_is_found_before_any_is_answered(run, tmp_path, monkeypatch):
    path = tmp_path / "d.csv"
    path.write_text("sentence\n" + "a film\n" * 50 + "one,two\n")
    monkeypatch.setattr(type(run.engine), "score", None)
    with pytest.raises(InputError, match="line 52 of"):
        predict_rows(run, file_source(path), Target(None, ".csv", whole=True))


def test_the_rows_before_a_bad_one_of_stdin_are_written_and_said(folder, stdin, noback):
    stdin("sentence\n" + "a film\n" * 5 + "one,two\n")
    code, out, err = noback("predict", folder, "--data", "-")
    assert (code, len(out.splitlines())) == (2, 6)
    assert "line 7 of stdin (read as csv; --stdin-format says otherwise) has 2 fields; expected 1" in err
    assert "(5 rows were written before)" in err


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_line_without_end_is_refused_and_not_held(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_LONGEST_LINE", 100)
    path = tmp_path / f"d{ending}"
    path.write_text("sentence\n" + "x" * 101)
    with pytest.raises(InputError, match="line 2 of .* is longer than 100 bytes" if ending == ".csv" else "line 1 of"):
        list(stream_rows(path))


def test_a_row_of_lines_without_end_is_refused_and_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_LONGEST_ROW", 100)
    path = tmp_path / "d.csv"
    path.write_text("sentence,label\n" + "a film,1\n" * 30 + '"a\n' + "b\n" * 60)
    rows = stream_rows(path)
    assert [next(rows)[0] for _ in range(30)] == list(range(2, 32))
    with pytest.raises(InputError, match="is a quote not closed"):
        next(rows)


def test_a_pipe_or_a_damaged_gzip_file_is_refused(folder, tmp_path, refused):
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is no regular file" in refused(folder, "--data", tmp_path / "pipe.csv")
    write(tmp_path / "d.csv.gz")
    whole = (tmp_path / "d.csv.gz").read_bytes()
    (tmp_path / "d.csv.gz").write_bytes(whole[:-12])
    assert "cannot be read" in refused(folder, "--data", tmp_path / "d.csv.gz")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_and_a_byte_order_mark_are_read(ends, tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes(b"\xef\xbb\xbf" + ends.join(["sentence,label", '"two', 'lines",1', "b,0", ""]).encode())
    assert [row for _, row in stream_rows(path)] == [
        {"sentence": f"two{ends}lines", "label": "1"}, {"sentence": "b", "label": "0"},
    ]  # fmt: skip


def test_what_a_table_cannot_hold_is_refused_with_a_form_that_can(folder, tmp_path, refused):
    data = write_rows(tmp_path / "tab.jsonl", [{"sentence": "a\tfilm"}])
    assert "write .csv or .jsonl" in refused(folder, "--data", data, "--out", tmp_path / "a.tsv")
    data = write_rows(tmp_path / "more.jsonl", [{"sentence": "a"}, {"sentence": "b", "id": 1}])
    assert "write .jsonl" in refused(folder, "--data", data, "--out", tmp_path / "a.csv")


def test_answers_that_are_no_numbers_leave_no_file(folder, tmp_path, noback, monkeypatch):
    from noback import predictions
    from noback.errors import NoNumbers

    def no_numbers(*_):
        raise NoNumbers("1 of 3 examples have label logits that are no numbers")

    monkeypatch.setattr(predictions.answering, "scored", no_numbers)
    code, out, err = noback("predict", folder, "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.csv")
    assert (code, out) == (1, "")
    assert "are no numbers" in err
    assert not (tmp_path / "a.csv").exists()


# Every kind of task


@pytest.fixture
def trained(tiny_causal_folder, tmp_path):
    """A run of two steps over made-up rows of a causal task, and those rows as a file."""

    def made(name, **options):
        data = write_rows(tmp_path / f"{name}.jsonl", rows_of(load_spec(name)))
        config = RunConfig(model=str(tiny_causal_folder), task=name, data=str(data), steps=2, batch=4, **options)
        train(config, tmp_path / "run")
        return tmp_path / "run", data

    return made


@pytest.mark.parametrize("name", ["copa", "record", "rte-causal"])
def test_causal_tasks_and_a_rows_own_choices_are_answered_as_evaluate_counts(name, trained, tmp_path, noback):
    folder, data = trained(name)
    code, _, err = noback("predict", folder, "--data", data, "--out", tmp_path / "a.jsonl")
    assert code == 0, err
    run, _ = tuned_run(folder)
    spec, found = run.task.spec, read(tmp_path / "a.jsonl")
    if spec.answer == "choices":
        assert all(sum(row["probabilities"]) == pytest.approx(1, abs=1e-4) for row in found)
        assert all(row["probabilities"][row["prediction_index"]] == max(row["probabilities"]) for row in found)
    if name == "copa":
        assert all(row["prediction"] == row[f"choice{row['prediction_index'] + 1}"] for row in found)
        right = sum(row["prediction_index"] == row["label"] for row in found)
    elif name == "record":
        right = sum(row["prediction"] in row[spec.label] for row in found)
    else:
        right = sum(row["prediction"] == str(row[spec.label]) for row in found)
    assert right / len(found) == evaluate(run, str(data))[0].accuracy


def test_written_answers_are_written_to_the_file(trained, tmp_path, noback, refused):
    folder, data = trained("instructions")
    code, _, err = noback("predict", folder, "--data", data, "--out", tmp_path / "a.csv")
    assert code == 0, err
    rows = read(data)
    assert [row["prediction"] for row in read(tmp_path / "a.csv")] == generate(folder, rows)
    assert "use .csv or .jsonl" in refused(folder, "--data", data, "--out", tmp_path / "a.tsv")


def test_a_head_answers_rows(tiny_folder, data_folder, tmp_path, noback):
    config = RunConfig(model=str(tiny_folder), data=str(data_folder), steps=2, adapter=Head())
    train(config, tmp_path / "run")
    assert noback("predict", tmp_path / "run", "--data", write(tmp_path / "d.csv"), "--out", tmp_path / "a.csv")[0] == 0
    alone = [max(chances, key=chances.get) for text in TEXTS for chances in predict(tmp_path / "run", text)]
    assert [row["prediction"] for row in read(tmp_path / "a.csv")] == alone


# From Python


def test_one_string_is_one_text(run):
    assert predict(run, "a lovely film") == predict(run, ["a lovely film"])
    assert len(predict(run, "a lovely film")) == 1


def test_texts_rows_a_dataset_an_iterator_a_data_frame_and_a_file_give_the_same(run, tmp_path):
    import datasets
    import pandas

    texts = predict(run, TEXTS)
    for data in (
        ROWS,
        [{"sentence": text} for text in TEXTS],
        datasets.Dataset.from_list(ROWS),
        (row for row in ROWS),
        pandas.DataFrame(ROWS),
        pandas.Series(TEXTS),
        write(tmp_path / "d.csv"),
    ):
        assert predict(run, data) == texts


def test_python_needs_no_pandas():
    assert "import pandas" not in "".join(path.read_text() for path in Path(package.__file__).parent.rglob("*.py"))


def test_columns_are_renamed_from_python_too(run):
    assert predict(run, [{"text": text} for text in TEXTS], columns="text") == predict(run, TEXTS)


def test_a_runs_folder_stands_for_its_best_weights(folder, run):
    assert predict(folder, TEXTS) == predict(str(folder), TEXTS) == predict(run, TEXTS)


def test_many_texts_go_through_the_model_in_batches(run, monkeypatch):
    sizes = []
    score = type(run.engine).score
    monkeypatch.setattr(
        type(run.engine), "score", lambda self, batch, points: sizes.append(len(batch)) or score(self, batch, points)
    )
    assert len(predict(run, TEXTS * 10)) == 80
    assert max(sizes) == run.config.batch


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (["a film", 3.5], "row 2 is 3.5; expected a text"),
        ([{"sentence": "a film"}, {"sentence": None}], "row 2 has no value for column 'sentence'"),
        ([{"text": "a film"}], "the data has no column 'sentence'"),
        ({"sentence": ["a", "b"]}, "row 1 has a list in column 'sentence'"),
        ([("one", "two")], "has 2 sentences"),
        (7, "the data is 7; expected a text"),
        ("reviews.csv", "pathlib.Path"),
        (["a film", "\ud800"], "is no UTF-8"),
    ],
)
def test_what_is_no_data_is_refused_by_its_row(data, said, run):
    with pytest.raises(InputError, match=said):
        predict(run, data)

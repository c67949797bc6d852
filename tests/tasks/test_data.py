"""Where examples come from: files, folders and datasets, and the sentences for those that cannot be used."""

import csv
import gzip
import json
import os

import pytest

from noback.errors import InputError
from noback.tasks.data import Example, read_data
from noback.tasks.spec import spec_of
from tests.conftest import write_rows

TABLES = {
    ".csv": 'sentence,label\n"well played, clever",1\n"she said ""no""",0\n',
    ".tsv": 'sentence\tlabel\nwell played, clever\t1\nshe said "no"\t0\n',
    ".jsonl": '{"sentence": "well played, clever", "label": 1}\n{"label": 0, "sentence": "she said \\"no\\""}\n',
}
EXAMPLES = [Example(("well played, clever",), 1), Example(('she said "no"',), 0)]


def write(path, text):
    """A text file, compressed where its name says so."""
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path, spec):
    return read_data(str(path), spec)


def refusal(source, spec):
    """The sentence with which a source is refused."""
    with pytest.raises(InputError) as caught:
        read_data(str(source), spec)
    return str(caught.value)


@pytest.fixture
def truth_spec():
    return spec_of(
        {
            "name": "truth",
            "template": "*cls**sent_0**mask**sep+*",
            "words": {"false": "No", "true": "Yes"},
            "sentences": ["sentence"],
        },
        "truth.toml",
    )


# Files that can be read


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("ending", TABLES)
def test_a_single_file_is_read_as_a_whole(ending, packing, tmp_path, reviews_spec):
    assert read(write(tmp_path / f"mine{ending}{packing}", TABLES[ending]), reviews_spec) == {"whole": EXAMPLES}


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("ending", TABLES)
def test_a_folder_gives_its_splits_by_name(ending, packing, tmp_path, reviews_spec):
    for name in ("train", "dev", "test"):
        write(tmp_path / f"{name}{ending}{packing}", TABLES[ending])
    assert read(tmp_path, reviews_spec) == {"train": EXAMPLES, "validation": EXAMPLES, "test": EXAMPLES}


@pytest.mark.parametrize("name", ["dev", "validation", "val", "DEV"])
def test_a_validation_file_goes_by_any_of_its_names(name, tmp_path, reviews_spec):
    for split in ("train", name):
        write(tmp_path / f"{split}.csv", TABLES[".csv"])
    assert set(read(tmp_path, reviews_spec)) == {"train", "validation"}


def test_a_folder_with_one_file_of_another_name_is_a_whole(tmp_path, reviews_spec):
    write(tmp_path / "reviews-2024.tsv", TABLES[".tsv"])
    assert read(tmp_path, reviews_spec) == {"whole": EXAMPLES}


def test_files_that_are_no_split_are_left_alone(tmp_path, reviews_spec):
    for name in ("train.csv", "test.csv", "original.csv", "README.md"):
        write(tmp_path / name, TABLES[".csv"])
    assert set(read(tmp_path, reviews_spec)) == {"train", "test"}


def test_splits_of_different_kinds_can_share_a_folder(tmp_path, reviews_spec):
    write(tmp_path / "train.csv", TABLES[".csv"])
    write(tmp_path / "test.jsonl.gz", TABLES[".jsonl"])
    assert read(tmp_path, reviews_spec) == {"train": EXAMPLES, "test": EXAMPLES}


def test_quotes_in_a_tsv_are_kept(tmp_path, reviews_spec):
    file = write(tmp_path / "a.tsv", 'sentence\tlabel\n"dull" and "flat\t0\n')
    assert read(file, reviews_spec)["whole"][0].sentences == ('"dull" and "flat',)


def test_a_quoted_line_break_in_a_csv_is_kept(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", 'sentence,label\n"dull\nand flat",0\n')
    assert read(file, reviews_spec)["whole"][0].sentences == ("dull\nand flat",)


def test_columns_are_found_by_name_wherever_they_stand(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "id,label,more,sentence\n7,1,x,clever\n")
    assert read(file, reviews_spec)["whole"] == [Example(("clever",), 1)]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "\ufeffsentence,label\nclever,1\n")
    assert read(file, reviews_spec)["whole"] == [Example(("clever",), 1)]


def test_windows_line_ends_are_no_part_of_a_label(tmp_path, reviews_spec):
    file = write(tmp_path / "a.tsv", "sentence\tlabel\r\nclever\t1\r\n")
    assert read(file, reviews_spec)["whole"] == [Example(("clever",), 1)]


def test_blank_lines_are_skipped(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '\n{"sentence": "clever", "label": 1}\n\n')
    assert read(file, reviews_spec)["whole"] == [Example(("clever",), 1)]


@pytest.mark.parametrize("break_", ["\u2028", "\u2029", "\u0085"], ids=["U+2028", "U+2029", "U+0085"])
def test_only_a_line_feed_ends_a_line_of_json(break_, tmp_path, reviews_spec):
    row = json.dumps({"sentence": f"clever{break_}film", "label": 1}, ensure_ascii=False)
    file = write(tmp_path / "a.jsonl", row + "\n")
    assert read(file, reviews_spec)["whole"] == [Example((f"clever{break_}film",), 1)]


def test_two_sentences_come_in_the_order_of_the_task(tmp_path):
    spec = spec_of(
        {
            "name": "pair",
            "template": "*cls**sent_0**mask**sent_1**sep+*",
            "words": {"0": "No", "1": "Yes"},
            "sentences": ["premise", "hypothesis"],
        },
        "pair.toml",
    )
    file = write(tmp_path / "a.csv", "hypothesis,label,premise\nhe is awake,0,a man sleeps\n")
    assert read(file, spec)["whole"] == [Example(("a man sleeps", "he is awake"), 0)]


# Labels


@pytest.mark.parametrize("label", [1, 1.0, "1", " 1 "])
def test_a_number_is_the_label_of_its_text(label, tmp_path, reviews_spec):
    file = write_rows(tmp_path / "a.jsonl", [{"sentence": "clever", "label": label}])
    assert read(file, reviews_spec)["whole"][0].gold == 1


@pytest.mark.parametrize(("label", "gold"), [(True, 1), (False, 0), ("true", 1)])
def test_a_truth_value_is_the_label_of_its_json_text(label, gold, tmp_path, truth_spec):
    file = write_rows(tmp_path / "a.jsonl", [{"sentence": "clever", "label": label}])
    assert read(file, truth_spec)["whole"][0].gold == gold


def test_a_fraction_is_no_label(tmp_path, reviews_spec):
    file = write_rows(tmp_path / "a.jsonl", [{"sentence": "clever", "label": 0.5}])
    assert "has the label '0.5'" in refusal(file, reviews_spec)


def test_an_unknown_label_is_named_with_its_line(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentence,label\nclever,1\ndull,2\n")
    assert f"line 3 of '{file}' has the label '2'" in refusal(file, reviews_spec)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["0", "1", "2", "10", "1"], '--words "0=terrible,1=great,2=...,10=..."'),
        (["pos", "neg", "pos"], '--words "neg=...,pos=..."'),
        (["a, b", "0"], """--words '0=terrible,"a, b"=...'"""),
    ],
)
def test_a_label_without_a_word_comes_with_the_words_to_give(labels, words, tmp_path, reviews_spec):
    file = write_rows(tmp_path / "d.jsonl", [{"sentence": "a film", "label": label} for label in labels])
    assert f"; train with a word for each label of the data: {words}" in refusal(file, reviews_spec)


def test_a_column_of_many_values_is_doubted_to_be_the_label(tmp_path, reviews_spec):
    file = write_rows(tmp_path / "d.jsonl", [{"sentence": "a film", "label": f"text {n}"} for n in range(40)])
    assert "its column 'label' holds 40 different values" in refusal(file, reviews_spec)


def test_an_unknown_label_comes_with_the_labels_of_the_task(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentence,label\ndull,negative\n")
    assert "not in task 'small' (its labels: 0, 1)" in refusal(file, reviews_spec)


# What is refused


@pytest.mark.parametrize("ending", TABLES)
def test_a_missing_column_comes_with_the_columns_there_are(ending, tmp_path, reviews_spec):
    file = write(tmp_path / f"a{ending}", TABLES[ending].replace("sentence", "text"))
    sentence = refusal(file, reviews_spec)
    assert "has no column 'sentence'" in sentence
    assert "text" in sentence.partition("(it has: ")[2].partition(")")[0]


def test_a_missing_column_comes_with_the_nearest_name(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentences,label\nclever,1\n")
    assert "did you mean 'sentences'?" in refusal(file, reviews_spec)


def test_a_missing_column_comes_with_the_flag_that_names_columns(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentence,stars\nclever,1\n")
    assert "--columns SENTENCE[,SENTENCE],LABEL" in refusal(file, reviews_spec)


def test_a_missing_value_is_named_with_its_line(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '{"sentence": "clever", "label": 1}\n\n{"sentence": "dull", "label": null}\n')
    assert f"line 3 of '{file}' has no value for column 'label'" in refusal(file, reviews_spec)


@pytest.mark.parametrize("row", ["dull", "dull\t0\tmore", "dull\t0\t"], ids=["fewer", "more", "one empty more"])
@pytest.mark.parametrize(("ending", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_row_with_other_fields_than_columns_is_refused_by_its_line(ending, mark, row, tmp_path, reviews_spec):
    text = f"sentence\tlabel\nclever\t1\n{row}\n".replace("\t", mark)
    file = write(tmp_path / f"a.{ending}", text)
    count = len(row.split("\t"))
    assert f"line 3 of data file '{file}' has {count} field{'s' * (count > 1)}; expected 2" in refusal(
        file, reviews_spec
    )


def test_a_row_that_lacks_a_column_no_task_asks_for_is_refused_too(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentence,label,source\nclever,1,a\ndull,0\n")
    assert "has 2 fields; expected 3" in refusal(file, reviews_spec)


def test_a_column_that_stands_twice_in_the_first_line_is_refused(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", "sentence,label,sentence\nclever,1,dull\n")
    assert f"the first line of data file '{file}' names the column 'sentence' twice" in refusal(file, reviews_spec)


def test_columns_without_a_name_do_not_count_while_no_task_asks_for_them(tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", ",sentence,label,\n0,clever,1,x\n1,dull,0,y\n")
    assert [one.sentences for one in read(file, reviews_spec)["whole"]] == [("clever",), ("dull",)]


@pytest.mark.parametrize(
    ("column", "value"), [("sentence", '["a", "b"]'), ("sentence", '{"a": "b"}'), ("label", "[1]")]
)
def test_a_list_or_an_object_where_one_text_is_expected_is_refused(column, value, tmp_path, reviews_spec):
    values = {"sentence": '"dull"', "label": "0", column: value}
    row = ", ".join(f'"{name}": {text}' for name, text in values.items())
    file = write(tmp_path / "a.jsonl", f"{{{row}}}\n")
    assert f"in column '{column}'; expected one text" in (said := refusal(file, reviews_spec))
    assert f"line 1 of '{file}' has " in said


@pytest.mark.parametrize(
    ("choices", "label"),
    [('[{"text": "a"}, "b"]', '"b"'), ('[["a"], "b"]', '"b"'), ('{"a": "b"}', "0"), ('["a", "b"]', '{"right": "a"}')],
)
def test_choices_and_answers_are_texts_or_lists_of_texts(choices, label, tmp_path):
    entries = {"name": "pick", "prompt": "{question}", "choices": ["options"]}
    file = write(tmp_path / "a.jsonl", f'{{"question": "which?", "options": {choices}, "label": {label}}}\n')
    assert "expected one text" in refusal(file, spec_of(entries, "pick.toml"))


def test_a_key_that_stands_twice_in_one_object_is_refused_by_its_line(tmp_path, reviews_spec):
    file = write(
        tmp_path / "a.jsonl", '{"sentence": "clever", "label": 1}\n{"sentence": "a", "sentence": "b", "label": 0}\n'
    )
    assert f"line 2 of data file '{file}' is not JSON: the key 'sentence' stands twice" in refusal(file, reviews_spec)


def test_a_number_that_is_none_is_refused(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '{"sentence": NaN, "label": 1}\n')
    assert "NaN is no JSON value" in refusal(file, reviews_spec)


def test_a_lone_surrogate_in_a_sentence_is_refused_by_its_line(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '{"sentence": "half \\ud83d", "label": 1}\n')
    assert f"line 1 of '{file}', column 'sentence', is 'half \\ud83d', which is no UTF-8" in refusal(file, reviews_spec)


def test_a_field_of_a_million_characters_is_read_and_the_limit_of_the_process_stays(tmp_path, reviews_spec):
    before = csv.field_size_limit()
    file = write(tmp_path / "a.csv", f"sentence,label\n{'long ' * 200_000},1\nshort,0\n")
    assert len(read(file, reviews_spec)["whole"][0].sentences[0]) == 1_000_000
    assert csv.field_size_limit() == before


def test_a_field_over_the_bound_is_refused_and_the_limit_of_the_process_stays(tmp_path, reviews_spec):
    before = csv.field_size_limit()
    file = write(tmp_path / "a.csv", f"sentence,label\n{'x' * (2**24 + 1)},1\n")
    assert "line 2 of data file" in (said := refusal(file, reviews_spec))
    assert "at most 16,777,216 characters" in said
    assert csv.field_size_limit() == before


def test_a_number_of_thousands_of_digits_is_refused_by_its_line(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", f'{{"sentence": "clever", "label": {"9" * 5000}}}\n')
    assert f"line 1 of data file '{file}' is not JSON" in refusal(file, reviews_spec)


def test_a_choice_is_no_number_of_thousands_of_digits(tmp_path):
    entries = {"name": "pick", "prompt": "{question}", "choices": ["options"]}
    row = f'{{"question": "which?", "options": ["a", "b"], "label": "{"9" * 5000}"}}\n'
    assert "expected the text of a choice, or its number" in refusal(
        write(tmp_path / "a.jsonl", row), spec_of(entries, "pick.toml")
    )


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, reviews_spec):
    os.mkfifo(tmp_path / "a.csv")
    assert "a.csv' is no regular file" in refusal(tmp_path / "a.csv", reviews_spec)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_a_split_that_is_no_regular_file_is_refused_and_not_passed_over(make, tmp_path, reviews_spec):
    write(tmp_path / "train.csv", TABLES[".csv"])
    make(tmp_path / "test.csv")
    assert f"data file '{tmp_path / 'test.csv'}' is " in refusal(tmp_path, reviews_spec)


def test_a_link_to_a_file_is_followed(tmp_path, reviews_spec):
    write(tmp_path / "real.csv", TABLES[".csv"])
    (tmp_path / "a.csv").symlink_to(tmp_path / "real.csv")
    assert read(tmp_path / "a.csv", reviews_spec)["whole"] == EXAMPLES


@pytest.mark.parametrize("name", ["a\0.csv", "a" * 5000 + ".csv"], ids=["a NUL", "too long"])
def test_data_that_cannot_exist_is_refused_with_a_sentence(name, tmp_path, reviews_spec):
    assert "expected a file (.csv, .tsv, .jsonl" in refusal(tmp_path / name, reviews_spec)


@pytest.mark.parametrize("text", ["", "sentence,label\n"], ids=["no bytes", "a header only"])
def test_a_file_without_examples_is_refused(text, tmp_path, reviews_spec):
    file = write(tmp_path / "a.csv", text)
    assert refusal(file, reviews_spec) == f"'{file}' holds no examples"


def test_a_split_without_examples_is_refused(tmp_path, reviews_spec):
    write(tmp_path / "train.csv", TABLES[".csv"])
    file = write(tmp_path / "test.csv", "sentence,label\n")
    assert refusal(tmp_path, reviews_spec) == f"'{file}' holds no examples"


def test_a_broken_line_of_json_is_named(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '{"sentence": "clever", "label": 1}\n{"sentence": "du\n')
    assert f"line 2 of data file '{file}' is not JSON" in refusal(file, reviews_spec)


def test_a_line_of_json_that_is_no_object_is_named(tmp_path, reviews_spec):
    file = write(tmp_path / "a.jsonl", '["clever", 1]\n')
    assert f"line 1 of data file '{file}' is no JSON object" in refusal(file, reviews_spec)


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: b"sentence,label\n",
        lambda packed: packed[:-9],
        lambda packed: packed[:10] + bytes([packed[10] ^ 0x55]) + packed[11:],
        lambda packed: packed[:-8] + bytes(8),
    ],
    ids=["not gzip", "cut short", "damaged inside", "wrong checksum"],
)
def test_a_broken_gzip_file_is_refused_with_a_sentence(damage, tmp_path, reviews_spec):
    file = tmp_path / "a.csv.gz"
    file.write_bytes(damage(gzip.compress(TABLES[".csv"].encode() * 20)))
    assert f"data file '{file}' cannot be read" in refusal(file, reviews_spec)


def test_text_that_is_not_utf8_is_refused_with_a_sentence(tmp_path, reviews_spec):
    file = tmp_path / "a.csv"
    file.write_bytes("sentence,label\ncafé,1\n".encode("latin-1"))
    assert f"data file '{file}' cannot be read" in refusal(file, reviews_spec)


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.parquet", "a", "a.csv.zip", "a.gz"])
def test_an_unknown_ending_comes_with_the_known_ones(name, tmp_path, reviews_spec):
    file = write(tmp_path / name, TABLES[".csv"])
    assert "has an unknown ending; expected .csv, .tsv, .jsonl, plain or .gz" in refusal(file, reviews_spec)


def test_a_path_that_does_not_exist_is_named(tmp_path, reviews_spec):
    assert f"data '{tmp_path / 'nowhere.csv'}' does not exist" in refusal(tmp_path / "nowhere.csv", reviews_spec)


def test_a_folder_without_split_files_is_refused(tmp_path, reviews_spec):
    write(tmp_path / "README.md", "no data here")
    assert "has no split file; expected train" in refusal(tmp_path, reviews_spec)


def test_two_files_for_one_split_are_both_named(tmp_path, reviews_spec):
    for name in ("train.csv", "dev.csv", "val.csv"):
        write(tmp_path / name, TABLES[".csv"])
    assert "has two files for validation: dev.csv and val.csv" in refusal(tmp_path, reviews_spec)


# Hugging Face datasets


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The `datasets` library, cut off from the network and with its cache in the test's own folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return datasets


def test_a_dataset_gives_the_same_examples_as_its_files(hub, tmp_path, reviews_spec):
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.csv", TABLES[".csv"])
    write(folder / "test.csv", "sentence,label\ndull,0\nclever,1\n")
    assert read_data(f"hf:{folder}", reviews_spec) == read(folder, reviews_spec)


def nli_folder(hub, folder, labels, names=("entailment", "neutral", "contradiction")):
    """A dataset whose labels are numbers with names, as the hub keeps them."""
    folder.mkdir()
    features = hub.Features(
        {"premise": hub.Value("string"), "hypothesis": hub.Value("string"), "label": hub.ClassLabel(names=list(names))}
    )
    for split, numbers in labels.items():
        rows = [{"premise": "a man sleeps", "hypothesis": "he is awake", "label": number} for number in numbers]
        hub.Dataset.from_list(rows, features=features).to_parquet(str(folder / f"{split}.parquet"))
    return f"hf:{folder}"


@pytest.fixture
def nli_spec():
    return spec_of(
        {
            "name": "nli",
            "template": "*cls**sent-_0*?*mask*,*+sentl_1**sep+*",
            "words": {"contradiction": "No", "entailment": "Yes", "neutral": "Maybe"},
            "sentences": ["premise", "hypothesis"],
        },
        "nli.toml",
    )


def test_a_datasets_label_numbers_go_by_their_names(hub, tmp_path, nli_spec):
    source = nli_folder(hub, tmp_path / "set", {"train": [0, 1, 2]})
    golds = [example.gold for example in read_data(source, nli_spec)["train"]]
    assert [nli_spec.labels[gold] for gold in golds] == ["entailment", "neutral", "contradiction"]


def test_a_split_whose_labels_are_withheld_does_not_count(hub, tmp_path, nli_spec):
    source = nli_folder(hub, tmp_path / "set", {"train": [0, 1, 2], "validation": [0, 2], "test": [-1, -1]})
    assert set(read_data(source, nli_spec)) == {"train", "validation"}


def test_an_example_without_a_gold_label_is_left_out(hub, tmp_path, nli_spec):
    """SNLI marks the examples on which its annotators did not agree with -1, in every split."""
    source = nli_folder(hub, tmp_path / "set", {"train": [0, -1, 2]})
    assert len(read_data(source, nli_spec)["train"]) == 2


def test_a_dataset_that_is_not_there_is_refused_with_a_sentence(hub, tmp_path, reviews_spec):
    assert "nowhere' cannot be loaded: " in refusal(f"hf:{tmp_path / 'nowhere'}", reviews_spec)


def test_an_unknown_label_of_a_dataset_is_named(hub, tmp_path, reviews_spec):
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.csv", "sentence,label\nclever,1\ndull,2\n")
    assert "has the label '2', which is not in task 'small'" in refusal(f"hf:{folder}", reviews_spec)

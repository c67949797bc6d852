"""Files of a data folder that are not read are named."""

import pytest

from noback import InputError
from noback.tasks.data import read_data, unused_files
from noback.tasks.task import draw_examples, read_split


@pytest.fixture
def folder(data_folder):
    """A folder whose train file goes by a name that says nothing."""
    (data_folder / "train.jsonl").rename(data_folder / "fewglue_train32.jsonl")
    (data_folder / "test.jsonl").unlink()
    (data_folder / "train.xlsx").write_bytes(b"a table")
    (data_folder / "README.md").write_text("notes")
    return data_folder


def test_files_that_are_not_splits_are_named_with_what_to_do(folder, reviews_spec):
    (note,) = unused_files(str(folder))
    assert "2 files of folder" in note
    assert "not used: fewglue_train32.jsonl, train.xlsx (used: validation.jsonl)" in note
    assert "rename a file to use it as a split" in note
    assert "--data FILE" in note
    assert note in draw_examples(reviews_spec, str(folder), 1, 0, 8).notes
    assert note in read_split(reviews_spec, str(folder), "test", None)[1]


def test_a_user_sees_the_names_while_training(folder, tiny_folder, noback, tmp_path):
    flags = ("--shots", 1, "--steps", 1, "--batch", 2, "--out", tmp_path / "run")
    code, _, err = noback("train", "--model", tiny_folder, "--data", folder, *flags)
    assert code == 0
    assert "fewglue_train32.jsonl" in err


def test_a_folder_of_splits_or_one_file_has_nothing_to_say(data_folder):
    assert unused_files(str(data_folder)) == []
    assert unused_files(str(data_folder / "train.jsonl")) == []
    assert unused_files("hf:sst2") == []


def test_a_folder_without_a_split_is_refused_with_the_names_it_has(data_folder, reviews_spec):
    for name in ("train", "test", "validation"):
        (data_folder / f"{name}.jsonl").rename(data_folder / f"my-{name}.jsonl")
    with pytest.raises(InputError, match=r"it has my-test.jsonl, my-train.jsonl, my-validation.jsonl"):
        read_data(str(data_folder), reviews_spec)

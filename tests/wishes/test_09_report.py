"""Point 9: the report shows the template and the label words, and its Markdown the course of the run."""

import pytest

from tests.conftest import NEGATIVE, POSITIVE, write_rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder):
    """Runs with label words and with a head."""
    from noback.cli.main import main

    folder = tmp_path_factory.mktemp("reported")
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    for adapter in ("full", "head"):
        flags = ["--model", tiny_folder, "--data", folder, "--adapter", adapter, "--steps", 40, "--eval-every", 1]
        assert main(["train", *map(str, flags), "--out", str(folder / adapter)]) == 0
    return folder


@pytest.fixture
def markdown(trained, noback):
    return noback("report", trained / "full", "--markdown")[1]


def test_the_template_and_the_label_words_stand_in_the_report(trained, markdown, noback):
    assert r"| template | \*cls\*\*sent\_0\*\_It\_was\*mask\*.\*sep+\* |" in markdown
    assert "| label words | 0: terrible, 1: great |" in markdown
    noback("report", trained / "full")
    page = (trained / "full" / "report.html").read_text()
    assert "*cls**sent_0*_It_was*mask*.*sep+*" in page
    assert "0: terrible, 1: great" in page


def test_a_head_has_neither_template_nor_label_words(trained, noback):
    assert "| template |" not in noback("report", trained / "head", "--markdown")[1]


def test_the_markdown_has_the_course_of_the_run(markdown):
    course = markdown.partition("## Curves")[2].partition("## ")[0].strip().splitlines()
    assert course[0].startswith("Evaluations on the validation set, ")
    assert course[0].endswith(" of 41:")
    assert course[2] == "| step | accuracy | loss |"
    steps = [line.split("|")[1].strip() for line in course[4:]]
    assert steps[0].startswith("0")
    assert steps[-1].startswith("40")
    assert len(steps) <= 27
    assert sum("(best)" in step for step in steps) == 1

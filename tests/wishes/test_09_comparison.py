"""Point 9: the page of a comparison concludes in words, with evidence, shows the flips, and gives the command."""

import json
import shlex

import pytest

from noback.cli.main import _parser, main
from noback.counts import mcnemar, paired_difference
from noback.reporting.conclusion import Answered, conclusion, flips_table
from tests.conftest import NEGATIVE, POSITIVE, write_rows

EXAMPLES = 200


def line(right):
    return {"right": right}


def answered(title, rights, before=None):
    share = sum(rights) / len(rights)
    return Answered(title, title, share, len(rights), line(before or [0] * len(rights)), line(rights))


def of(*counts):
    """Right answers by blocks: of(150, 50) is 150 right ones and 50 wrong ones."""
    return [1 - place % 2 for place, count in enumerate(counts) for _ in range(count)]


def test_a_clear_winner_is_named_with_the_paired_counts():
    found = conclusion([answered("worse", of(100, 100)), answered("better", of(160, 40))])
    assert found.word == "better is best"
    assert found.evidence[0] == "better: 80.0% of 200 test examples right with its best weights"
    interval = paired_difference(60, 0, EXAMPLES)
    said = f"+30.0 points, 95% interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
    assert said in found.evidence[1]
    assert "better alone is right on 60, worse alone on 0" in found.evidence[1]
    assert found.evidence[1].endswith(": told apart")


def test_two_that_chance_may_part_cannot_be_told_apart():
    found = conclusion([answered("one", of(100, 100)), answered("other", of(0, 3, 103, 94))])
    assert found.word == "other and one cannot be told apart"
    assert f"(p = {mcnemar(6, 3):.2g}, needed below 0.05)" in found.evidence[1]


def test_a_leader_may_be_apart_from_some_and_not_from_others():
    found = conclusion([answered("last", of(50, 150)), answered("near", of(150, 50)), answered("first", of(152, 48))])
    assert found.word == "first leads, but cannot be told apart from near"
    assert "needed below 0.025" in found.evidence[1]  # two others share the five per cent


def test_a_leader_that_gained_nothing_is_said_to():
    found = conclusion([answered("same", of(150, 50), before=of(150, 50)), answered("worse", of(50, 150))])
    assert "same against the weights before training: +0.0 points" in found.evidence[-1]
    assert found.evidence[-1].endswith("no more than chance may give")


def test_without_answers_one_by_one_the_intervals_speak():
    lines = ({}, {})
    found = conclusion([Answered("a", "a", 0.8, EXAMPLES, *lines), Answered("b", "b", 0.78, EXAMPLES, *lines)])
    assert found.word == "a and b cannot be told apart"
    assert "the 95% intervals overlap (the answers one by one were not recorded)" in found.evidence[1]


def test_one_objective_alone_has_no_conclusion():
    assert conclusion([answered("alone", of(1, 1))]) is None


@pytest.mark.parametrize(("first", "second"), [(7, 1), (6, 0), (5, 0), (0, 9), (30, 12), (0, 0), (400, 300)])
def test_the_interval_of_a_difference_leaves_zero_out_where_the_test_does(first, second):
    interval = paired_difference(first, second, 1000)
    assert interval.low <= (first - second) / 1000 <= interval.high
    assert (interval.low > 0 or interval.high < 0) == (mcnemar(first, second) < 0.05)


def test_flips_are_counted_by_their_way_with_how_sure_they_were():
    before = {"answers": [0, 0, 1, 1], "right": [1, 0, 1, 0], "chances": [0.9, 0.6, 0.8, 0.7]}
    after = {"answers": [0, 1, 0, 1], "right": [1, 1, 0, 0], "chances": [0.95, 0.5, 0.7, 0.75]}
    (row,) = flips_table([Answered("one", "one", 0.5, 4, before, after)]).rows
    assert [cell.text for cell in row] == ["one", "2 of 4 (50.0%)", "1", "1", "70.0%", "60.0%", "85.0%"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("compared")
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    flags = ["--model", tiny_folder, "--data", folder, "--objectives", "cross_entropy,accuracy", "--steps", 4]
    words = ["compare", *map(str, flags), "--lr", "1e-2", "--eps", "1e-3", "--out", str(folder / "compared")]
    assert main(words) == 0
    return folder / "compared"


def test_a_comparisons_page_has_conclusion_flips_and_command(compared, noback):
    code, out, _ = noback("report", compared, "--markdown")
    assert code == 0
    assert [part.splitlines()[0] for part in out.split("## ")[1:]] == [
        "Conclusion", "Side by side", "Answers that changed", "What was run",
    ]  # fmt: skip
    assert "told apart" in out.partition("## Conclusion")[2].partition("## ")[0]
    assert " of 8 (" in out.partition("## Answers that changed")[2]
    code, _, _ = noback("report", compared)
    page = (compared / "report.html").read_text()
    assert code == 0
    assert all(title in page for title in ("Conclusion", "Answers that changed", "What was run", "noback compare"))


def test_compare_ends_with_the_conclusion_of_its_page(compared, noback):
    code, out, _ = noback("resume", compared)  # it has ended: nothing is trained again
    assert code == 0
    page = noback("report", compared, "--markdown")[1]
    word = page.partition("**")[2].partition("**")[0]
    assert f"\n{word}\n  - " in out


def test_the_command_on_the_page_is_the_same_comparison(compared, noback):
    from noback.cli.flags import config_from

    _, out, _ = noback("report", compared, "--markdown")
    command = out.partition("```sh\n")[2].partition("\n```")[0]
    found = _parser("compare").parse_args(shlex.split(command)[1:])
    table = json.loads((compared / "comparison.json").read_text())
    assert found.objectives == ",".join(table["objectives"])
    assert [float(each) for each in getattr(found, "estimator.eps").split(",")] == table["eps"]
    assert config_from(found).given() == table["config"]


def test_the_flips_are_those_of_the_recorded_answers(compared, noback):
    noback("report", compared)
    page = (compared / "report.html").read_text()
    for row in json.loads((compared / "comparison.json").read_text())["rows"]:
        lines = [json.loads(line) for line in (compared / row["name"] / "metrics.jsonl").read_text().splitlines()]
        (before,) = [each for each in lines if each["kind"] == "zero_shot"]
        (after,) = [each for each in lines if each["kind"] == "test" and each["at"] == "best"]
        assert sum(before["right"]) / 8 == row["before"]
        assert sum(after["right"]) / 8 == row["best"]
        flips = sum(old != new for old, new in zip(before["answers"], after["answers"], strict=True))
        assert f'data-figure="{row["name"]}-flips" data-value="{flips}"' in page


def test_two_that_answer_alike_are_not_said_to_be_ahead_of_each_other():
    found = conclusion([answered("one", of(15, 5), before=of(15, 5)), answered("other", of(15, 5))])
    assert "one has as many right" in found.evidence[1]
    assert not any("ahead" in line or "-0.0" in line for line in found.evidence)

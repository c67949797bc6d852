"""The comparison of objectives and the measurement of eps."""

import dataclasses
import json
import math

import pytest

from noback import (
    Accuracy,
    Full,
    Head,
    InputError,
    Lora,
    Momentum,
    Normal,
    OneSided,
    Prefix,
    Rademacher,
    RunConfig,
    Sgd,
    TwoSided,
)
from noback.comparing import COMPARED, compare, objective_config, objective_title, resume_comparison
from noback.folder import RunFolder
from noback.journal import read_header, read_journal
from noback.measuring_eps import Probe, _for_piecewise_constant, _for_smooth, agreement, measure_eps
from noback.run import recorded_config
from noback.training import Interrupted
from noback.usual import usual_lr
from noback.watching import Silent
from tests.conftest import write_rows

COLUMNS = {
    "objective", "eps", "zero_slope_share", "mean_abs_slope", "min_abs_slope", "max_abs_slope", "before", "after",
    "seconds",
}  # fmt: skip


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=4, batch=4, rule=Sgd(lr=1e-3), estimator=TwoSided(eps=1e-2)
    )


def test_a_comparison_has_a_row_and_a_run_for_each_objective(config, tmp_path):
    table = compare(config, out=tmp_path / "all")
    titles = ["label-word cross-entropy", "label-word accuracy", "head cross-entropy", "head accuracy"]
    assert [row["objective"] for row in table["rows"]] == titles
    for row in table["rows"]:
        assert set(row) >= COLUMNS
        steps = read_journal(tmp_path / "all" / row["name"] / "journal").steps
        slopes = [abs(slope) for record in steps for slope in record.slopes]
        assert row["zero_slope_share"] == sum(slope == 0 for slope in slopes) / 4
        assert row["mean_abs_slope"] == pytest.approx(sum(slopes) / 4)
        (tested,) = [
            line
            for line in RunFolder(tmp_path / "all" / row["name"]).read_metrics()
            if line["kind"] == "test" and line["at"] == "final"
        ]
        assert row["after"] == tested["accuracy"]
    saved = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert saved["rows"] == table["rows"]
    assert saved["finished"]


def test_a_readout_is_left_out_of_rows_that_cannot_have_one_and_that_is_said(config, tmp_path):
    said = []

    class Watch(Silent):
        def note(self, text):
            said.append(text)

    config = dataclasses.replace(config, readout="exact")
    compare(config, ["cross_entropy", "accuracy", "head/cross_entropy"], out=tmp_path / "all", watcher=Watch())
    kept = [
        journal.parent.name for journal in (tmp_path / "all").glob("*/journal") if "readout" in read_header(journal)
    ]
    assert kept == ["label-word-cross-entropy-eps-0.01"]
    assert [text for text in said if text.startswith("readout: left out")] == [
        "readout: left out, for objective 'accuracy' has no gradient to fit it by",
        "readout: left out, for adapter 'head' reads no label words",
    ]


def test_every_run_of_a_comparison_sees_the_same_data_and_directions(config, tmp_path):
    """At a learning rate of next to nothing, accuracy and cross-entropy are two readings of the same outputs."""
    config = dataclasses.replace(config, rule=Sgd(lr=1e-30))
    compare(config, ["cross_entropy", "words/cross_entropy"][:1], [1e-2], tmp_path / "one")
    compare(config, ["accuracy", "cross_entropy"], [1e-3, 1e-2], tmp_path / "two")
    one = read_journal(tmp_path / "one" / "label-word-cross-entropy-eps-0.01" / "journal")
    two = read_journal(tmp_path / "two" / "label-word-cross-entropy-eps-0.01" / "journal")
    assert one.steps == two.steps
    assert (
        one.header["data"]
        == read_journal(tmp_path / "two" / "label-word-accuracy-eps-0.001" / "journal").header["data"]
    )


def test_the_test_set_of_a_comparison_is_balanced(config, data_folder, tmp_path):
    rows = [json.loads(line) for line in (data_folder / "test.jsonl").read_text().splitlines()]
    write_rows(data_folder / "test.jsonl", rows[:5])  # four of one label, one of the other
    table = compare(config, ["accuracy"], out=tmp_path / "all")
    assert table["rows"][0]["examples"] == 2
    (start,) = [
        line
        for line in RunFolder(tmp_path / "all" / table["rows"][0]["name"]).read_metrics()
        if line["kind"] == "start"
    ]
    assert start["balance"]["test"] == [1, 1]


def test_a_stopped_comparison_goes_on_where_it_was(config, tmp_path):
    whole = compare(config, COMPARED[:2], out=tmp_path / "whole")
    asked = iter([False] * 6 + [True] + [False] * 99)
    with pytest.raises(Interrupted, match="noback resume"):
        compare(config, COMPARED[:2], out=tmp_path / "stopped", stop=lambda: next(asked))
    assert not json.loads((tmp_path / "stopped" / "comparison.json").read_text())["finished"]
    went_on = resume_comparison(tmp_path / "stopped")
    for one, other in zip(whole["rows"], went_on["rows"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
        for folder in ("whole", "stopped"):
            assert (tmp_path / folder / one["name"] / "journal").is_file()
        names = [(tmp_path / folder / one["name"] / "journal").read_bytes() for folder in ("whole", "stopped")]
        assert names[0] == names[1]


def test_a_run_that_diverges_leaves_a_row_and_the_others_go_on(config, tmp_path):
    table = compare(dataclasses.replace(config, rule=Sgd(lr=1e30)), COMPARED[:2], out=tmp_path / "all")
    first = table["rows"][0]
    assert (first["after"], first["verdict"]) == (None, "diverging")
    assert len(table["rows"]) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["acuracy"], "did you mean 'accuracy'"),
        (["tail/accuracy"], "expected one of head, words"),
        (["accuracy", "words/accuracy"], "named twice"),
        ([], "no objective"),
    ],
)
def test_an_objective_that_does_not_exist_is_refused_before_anything_is_made(config, tmp_path, names, said):
    with pytest.raises(InputError, match=said):
        compare(config, names, out=tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_folder_that_exists_is_refused(config, tmp_path):
    for function in (compare, measure_eps):
        with pytest.raises(InputError, match="exists"):
            function(config, out=tmp_path)


@pytest.mark.parametrize("adapter", [Lora(rank=2), Full("biases"), Prefix(tokens=2)], ids=str)
def test_a_comparison_keeps_the_adapter_and_its_own_lr(config, tmp_path, adapter):
    config = dataclasses.replace(config, adapter=adapter, rule=Sgd(), estimator=TwoSided())
    table = compare(config, ["cross_entropy", "head/cross_entropy"], out=tmp_path / "all")
    words, head = (read_journal(tmp_path / "all" / row["name"] / "journal").header["config"] for row in table["rows"])
    assert words["adapter"]["kind"] == adapter.kind
    assert words["rule"]["lr"] == usual_lr(adapter.kind, "two_sided", "sgd", "float32")
    assert (head["adapter"]["kind"], head["rule"]["lr"]) == ("head", 2e-5)


def test_a_look_that_a_kill_left_out_of_the_metrics_is_told_anew(config, tmp_path, monkeypatch):
    whole = compare(config, ["accuracy"], out=tmp_path / "whole")

    class Killed(BaseException):
        pass

    sound = RunFolder.add_metrics

    def dying(self, **values):
        if values["kind"] == "validation":
            raise Killed
        sound(self, **values)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", dying)
        with pytest.raises(Killed):
            compare(config, ["accuracy"], out=tmp_path / "killed")
    went_on = resume_comparison(tmp_path / "killed")
    assert {**went_on["rows"][0], "seconds": 0} == {**whole["rows"][0], "seconds": 0}


def test_a_comparison_is_by_the_method_that_was_named(config, tmp_path):
    method = {"estimator": OneSided(eps=1e-2, directions=2), "rule": Momentum(lr=1e-3, window=2), "noise": Normal()}
    table = compare(dataclasses.replace(config, steps=2, **method), ["cross_entropy"], out=tmp_path / "cmp")
    run = recorded_config(RunFolder(tmp_path / "cmp" / table["rows"][0]["name"]))
    assert {name: getattr(run, name) for name in method} == method
    assert table["rows"][0]["forwards"] == 2 * 3


def test_an_objective_keeps_its_options():
    config = objective_config(RunConfig(adapter=Head(seed=4)), "head/accuracy")
    assert (config.objective, config.adapter) == (Accuracy(), Head(seed=4))
    assert objective_title(config) == "head accuracy"
    assert objective_title(objective_config(config, "macro_f1")) == "label-word macro-F1"


# eps


def test_eps_rows_are_what_a_run_would_measure(config, tmp_path):
    """The same directions and examples at each eps: those of a run's first steps."""
    table = measure_eps(config, [1e-3, 1e-2], directions=3, out=tmp_path / "eps")
    still = dataclasses.replace(config, rule=Sgd(lr=1e-30), steps=3)
    for eps in (1e-3, 1e-2):
        for title, name in (("label-word cross-entropy", "cross_entropy"), ("label-word accuracy", "accuracy")):
            (row,) = [row for row in table["rows"] if (row["objective"], row["eps"]) == (title, eps)]
            compared = compare(still, [name], [eps], tmp_path / f"{name}-{eps}")["rows"][0]
            assert row["nonzero_share"] == pytest.approx(1 - compared["zero_slope_share"])
            assert row["mean_abs_slope"] == pytest.approx(compared["mean_abs_slope"], rel=1e-4)
    assert json.loads((tmp_path / "eps" / "epsilon.json").read_text())["rows"] == table["rows"]


def test_agreement_is_one_at_the_reference_and_curvature_grows_as_the_square_of_eps(config, tmp_path):
    config = dataclasses.replace(config, estimator=TwoSided(eps=3e-3))
    table = measure_eps(config, [1e-3, 1e-2], ["cross_entropy"], directions=6, out=tmp_path / "eps")
    rows = {row["eps"]: row for row in table["rows"]}
    assert sorted(rows) == [1e-3, 3e-3, 1e-2]
    assert rows[3e-3]["agreement"] == pytest.approx(1.0)
    assert rows[3e-3]["same_sign"] == 1.0
    assert rows[3e-3]["curvature"] / rows[1e-3]["curvature"] == pytest.approx(9, rel=0.2)


def test_slopes_are_loss_per_unit_whatever_the_estimator_records(config, tmp_path):
    found = {}
    for estimator in (TwoSided(eps=1e-3, directions=4), OneSided(eps=1e-3, directions=4)):
        one = dataclasses.replace(config, estimator=estimator, noise=Rademacher())
        table = measure_eps(one, [1e-3], ["cross_entropy"], directions=4, out=tmp_path / estimator.kind)
        found[estimator.kind] = table["rows"][0]["mean_abs_slope"]
    assert found["one_sided"] == pytest.approx(found["two_sided"], rel=0.05)
    assert found["one_sided"] != found["two_sided"]  # the curvature is in one of them


def test_words_and_head_are_measured_apart(config, tmp_path):
    table = measure_eps(config, [1e-2], COMPARED, directions=2, out=tmp_path / "eps")
    assert len(table["rows"]) == len(table["recommendations"]) == 4
    assert table["forwards"] == 2 * 2 * 3
    slopes = {row["objective"]: row["mean_abs_slope"] for row in table["rows"]}
    assert slopes["head cross-entropy"] != slopes["label-word cross-entropy"]


def probes(eps, slopes, curvature=0.0, flips=None):
    return [Probe(slope * eps + curvature / 2, 0.0, -slope * eps + curvature / 2, slope) for slope in slopes]


def test_a_smooth_objective_is_given_the_middle_of_the_plateau():
    true = [1.0, -2.0, 3.0, 0.5]
    noise = [2.0, 2.0, -1.0, 3.0]
    ladder = {1e-6: probes(1e-6, noise), **{eps: probes(eps, true) for eps in (1e-5, 1e-4, 1e-3)}}
    assert _for_smooth(ladder, sorted(ladder))["eps"] == 1e-4
    two = {1e-6: probes(1e-6, noise), 1e-5: probes(1e-5, true)}
    assert _for_smooth(two, sorted(two))["eps"] is None


def test_a_staircase_is_given_the_smallest_eps_with_few_zeros():
    ladder = {
        1e-4: probes(1e-4, [0.0] * 9 + [5.0]),
        1e-3: probes(1e-3, [0.0] * 3 + [5.0] * 7),
        1e-2: probes(1e-2, [0.0] + [5.0] * 9),
        1e-1: probes(1e-1, [5.0] * 10),
    }
    assert _for_piecewise_constant(ladder)["eps"] == 1e-2
    del ladder[1e-2], ladder[1e-1]
    assert _for_piecewise_constant(ladder)["eps"] == 1e-3
    assert _for_piecewise_constant({1e-4: probes(1e-4, [0.0] * 10)})["eps"] is None


def test_agreement_is_the_cosine():
    assert agreement([1.0, 0.0], [1.0, 1.0]) == pytest.approx(math.sqrt(0.5))
    assert agreement([0.0], [1.0]) is None


@pytest.mark.parametrize("eps", [[0.0], [-1e-3], [1e-3, 1e-3]])
def test_an_eps_that_makes_no_sense_is_refused(config, tmp_path, eps):
    with pytest.raises(InputError, match="eps"):
        measure_eps(config, eps, out=tmp_path / "eps")


def test_the_commands_print_rows_as_json(config, tmp_path, noback):
    shared = ("--model", config.model, "--data", config.data, "--batch", 4)
    code, out, err = noback(
        "compare",
        *shared,
        "--steps",
        2,
        "--objectives",
        "accuracy",
        "--eps",
        "1e-2,1e-3",
        "--out",
        tmp_path / "a",
        "--json",
    )
    assert code == 0, err
    assert [row["eps"] for row in json.loads(out)["rows"]] == [1e-2, 1e-3]
    code, out, err = noback("resume", tmp_path / "a", "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 2), err
    code, out, err = noback("epsilon", *shared, "--at", "1e-2", "--probes", 2, "--out", tmp_path / "b", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"][0]["eps"] == 1e-3  # the reference is measured too


def test_the_commands_print_tables_for_people(config, tmp_path, noback):
    shared = ("--model", config.model, "--data", config.data, "--batch", 4)
    code, out, _ = noback("compare", *shared, "--steps", 2, "--objectives", "accuracy", "--out", tmp_path / "a")
    assert code == 0
    assert "label-word accuracy" in out
    assert f"noback report {tmp_path / 'a'}" in out
    code, out, _ = noback("epsilon", *shared, "--at", "1e-2", "--probes", 2, "--out", tmp_path / "b")
    assert code == 0
    assert "agreement" in out

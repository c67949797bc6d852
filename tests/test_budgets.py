"""Methods at equal budgets: the plan, the course of a run, the paired bootstrap, the table and its page."""

import json

import numpy as np
import pytest
import tomli_w

from noback import InputError
from noback.budgets import begin, bench_methods, bench_part, plan_of, text
from noback.budgets.bootstrap import paired_difference
from noback.budgets.courses import seconds_by_step
from noback.budgets.table import summarised
from noback.cli.main import main
from noback.evaluating import answers
from noback.folder import RunFolder
from noback.run import drawn_data
from noback.training import Interrupted
from noback.tuned import tuned_run
from noback.watching import Silent
from tests.conftest import NEGATIVE, POSITIVE, write_rows

QUICK = {"steps": 6, "batch": 4, "eval_every": 3, "readout": "words"}
COUNTS = {"steps": 2, "batch": 4, "eval_every": 1, "estimator": {"kind": "two_sided", "directions": 3}}


@pytest.fixture
def table(tiny_folder, tmp_path):
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    texts = [(text, label) for label, found in ((1, POSITIVE), (0, NEGATIVE)) for text in found]
    rows = [{"sentence": f"{text} {n}", "label": label} for text, label in texts for n in range(4)]
    for split in ("train", "dev"):
        write_rows(tmp_path / "data" / "sst2" / f"{split}.jsonl", rows)
    return {
        "model": str(tiny_folder),
        "data": str(tmp_path / "data"),
        "tasks": ["sst2"],
        "shots": [4],
        "seeds": [13, 21],
        "test_limit": 8,
        "forwards": [1, 5, 12],
        "methods": [
            {"name": "MeZO", "lrs": [1e-3, 1e-2], "options": QUICK},
            {"name": "n-SPSA", "lrs": [1e-3, 1e-2], "options": COUNTS},
            {"name": "zero-shot", "baseline": "zero-shot"},
        ],
    }


def test_a_comparison_answers_the_test_set_where_each_budget_ends(table, tmp_path):
    plan = plan_of(table)
    found = bench_methods(plan, tmp_path / "out", watcher=Silent())
    first, second, zero_shot = found["rows"]
    assert (first["method"], second["method"]) == ("MeZO", "n-SPSA")
    for seed in (13, 21):
        lr = first["tasks"]["sst2"]["lrs"][plan.grid.seeds.index(seed)]
        name = f"sst2-k4-seed{seed}-mezo-lr{lr:g}"
        course = json.loads((tmp_path / "out" / "courses" / f"{name}.json").read_text())
        assert course["steps"]["forwards"] == [0, 2, 6]  # two forwards a step
        run, _ = tuned_run(tmp_path / "out" / "grid" / "runs" / name, "2")
        run.task.use(drawn_data(run.config, run.spec))
        logits, gold, _ = answers(run, "test")
        assert course["right"]["2"] == (logits.argmax(dim=1) == gold).long().tolist()
    name = next(path for path in (tmp_path / "out" / "courses").iterdir() if "n-spsa" in path.name)
    assert json.loads(name.read_text())["steps"]["forwards"] == [0, 0, 2]  # six forwards a step
    assert first["forwards"][0] == zero_shot["tasks"]["sst2"]["end"]  # no step is paid for
    assert first["forwards_difference"] == [None] * 3
    assert second["forwards_difference"][0] == [0.0, 0.0, 0.0]  # neither has taken a step
    assert found["machines"][0]["torch"]
    assert not list((tmp_path / "out" / "grid" / "runs").glob("*/snapshots"))  # journals give every step again
    assert "n-SPSA" in text(found)


def test_a_budget_that_does_not_pay_for_a_readouts_fit_leaves_the_untouched_model(table, tmp_path):
    options = {**QUICK, "readout": {"kind": "exact", "decay": 0.1, "refits": 0}}
    methods = [{"name": "readout", "options": options}, {"name": "zero-shot", "baseline": "zero-shot"}]
    plan = plan_of({**table, "seeds": [13], "methods": methods, "forwards": [1, 2, 3, 4, 14], "seconds": [1e-9]})
    found = bench_methods(plan, tmp_path / "out", watcher=Silent())
    course = json.loads((tmp_path / "out" / "courses" / "sst2-k4-seed13-readout.json").read_text())
    assert course["steps"] == {"forwards": [-1, 0, 0, 1, 6], "seconds": [-1]}  # the fit sees 8 examples in batches of 4
    assert found["rows"][0]["forwards"][0] == found["rows"][1]["tasks"]["sst2"]["end"]
    run, _ = tuned_run(tmp_path / "out" / "grid" / "runs" / "sst2-k4-seed13-readout", "0")
    run.task.use(drawn_data(run.config, run.spec))
    logits, gold, _ = answers(run, "test")
    assert course["right"]["0"] == (logits.argmax(dim=1) == gold).long().tolist()


def test_a_stopped_comparison_goes_on_and_ends_as_one_that_was_not(table, tmp_path):
    plan = plan_of(table)
    whole = bench_methods(plan, tmp_path / "whole", watcher=Silent())
    asked = iter([False] * 9 + [True] + [False] * 999)
    with pytest.raises(Interrupted, match="goes on"):
        bench_methods(plan, tmp_path / "stopped", watcher=Silent(), stop=lambda: next(asked))
    went_on = bench_methods(plan, tmp_path / "stopped", watcher=Silent())
    assert went_on["rows"] == whole["rows"]
    with pytest.raises(InputError, match="another plan"):
        bench_methods(plan_of({**table, "forwards": [1, 5]}), tmp_path / "stopped", watcher=Silent())


def course(steps, right):
    return {"steps": {"forwards": steps, "seconds": []}, "right": {str(step): one for step, one in right.items()}}


def test_means_differences_and_the_budget_that_reaches_the_reference(table):
    plan = plan_of({**table, "seeds": [13]})
    key = ("sst2", 4, 13)
    courses = {
        ("MeZO", *key): course([0, 2, 6], {0: [0, 0, 0, 0], 2: [1, 0, 0, 0], 6: [1, 1, 0, 0]}),
        ("n-SPSA", *key): course([0, 1, 2], {0: [0, 0, 0, 0], 1: [1, 1, 0, 0], 2: [1, 1, 1, 0]}),
    }
    ends = {("MeZO", *key): {"test": 0.5, "lr": 1e-3}, ("n-SPSA", *key): {"test": 0.75, "lr": 1e-2}}
    first, second, _ = summarised(plan, courses, ends)
    some = summarised(plan_of({**table, "seeds": [13, 21]}), courses, ends)  # half of the runs
    assert some[1]["forwards"] == [None] * 3  # of other seeds it would be no figure to compare
    assert some[1]["forwards_difference"][2][0] == 25.0
    assert first["forwards"] == [0.0, 25.0, 50.0]
    assert second["forwards"] == [0.0, 50.0, 75.0]
    assert second["forwards_difference"][2][0] == 25.0
    assert (first["reaches_reference_at"], second["reaches_reference_at"]) == (12, 5)


def test_the_interval_of_a_paired_difference_covers_the_true_one_and_narrows_with_examples():
    generator = np.random.default_rng(3)

    def drawn(examples):
        before = generator.random((5, examples)) < 0.6
        after = np.where(generator.random((5, examples)) < 0.2, True, before)
        return {"one": (after.astype(int) - before.astype(int)).tolist()}

    small, large = paired_difference(drawn(50)), paired_difference(drawn(5000))
    assert large.low < 8.0 < large.high
    assert large.high - large.low < (small.high - small.low) / 3
    assert paired_difference({"one": [[0, 0, 0]] * 2}) == (0.0, 0.0, 0.0)


def test_tasks_count_alike_whatever_their_size():
    found = paired_difference({"small": [[1, 1]], "large": [[0] * 1000]})
    assert found.mean == 50.0


def test_seconds_between_two_evaluations_go_with_the_steps(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    for step, seconds in ((0, 1.0), (4, 9.0), (6, 10.0)):
        folder.add_metrics(kind="validation", step=step, seconds=seconds)
    assert seconds_by_step(folder, 6) == [1.0, 3.0, 5.0, 7.0, 9.0, 9.5, 10.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forwards": []}, "names no forwards"),
        ({"forwards": [5, 1]}, "each larger than the last"),
        ({"forwards": [0, 1]}, "forwards is 0"),
        ({"seconds": [-1.0]}, "seconds is -1"),
        ({"budgets": [1]}, "unknown entry 'budgets'"),
        ({"all_of": ["trec"]}, "some of its tasks"),
        ({"methods": [{"name": "zero-shot", "baseline": "zero-shot"}]}, "takes noback's steps"),
        ({"methods": [{"name": "a", "lrs": [1e-3]}, {"name": "b", "lrs": [1e-3, 1e-2]}]}, "same number of trials"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(table, change, said):
    with pytest.raises(InputError, match=said):
        plan_of({**table, **change})


def test_all_of_a_task_takes_every_example_for_the_largest_shots(table):
    plan = plan_of({**table, "shots": [2, 4], "all_of": ["sst2"]})
    assert {cell.shots: cell.config.shots for cell in plan.grid.cells} == {2: 2, 4: None}


def test_the_command_estimates_runs_and_its_report_has_a_panel_a_task(table, tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps({**table, "seeds": [13], "seconds": [0.001, 60.0]}))
    assert main(["bench", "methods", str(plan), "--estimate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 5
    out = tmp_path / "out"
    assert main(["bench", "methods", str(plan), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"][0]["seconds"][1] is not None
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    written = page.read_text()
    assert "sst2, k = 4" in written
    assert "At equal seconds" in written
    assert main(["bench", "method", str(plan)]) == 2
    assert "the word methods and one plan's file" in capsys.readouterr().err


def test_one_learning_rate_a_task_is_the_one_that_its_first_seed_chose(table, tmp_path):
    plan = plan_of({**table, "lr_by": "task"})
    found = bench_methods(plan, tmp_path / "out", watcher=Silent())
    cells = {path.stem for path in (tmp_path / "out" / "grid" / "cells").iterdir()}
    assert len(cells) == len(plan.planned) == 2 * 3 + 1
    for row in found["rows"][:2]:
        first, second = row["tasks"]["sst2"]["lrs"]
        assert first == second
        tried = {name for name in cells if f"seed21-{row['method'].lower()}-" in name}
        assert {name.rpartition("-lr")[2] for name in tried} == {f"{first:g}"}


def test_parts_hold_every_run_once_and_all_seeds_of_a_method_together(table):
    plan = plan_of({**table, "shots": [2, 4], "lr_by": "task"})
    parts = [plan.part(number, 3) for number in (1, 2, 3)]
    groups = [group for part in parts for group in part]
    names = [cell.name for group in groups for cells in group.values() for cell in cells]
    assert sorted(names) == sorted(cell.name for cell in plan.grid.cells)
    assert len({key[:3] for group in groups for key in group}) == len(groups) == 2 * 2 + 1
    assert [next(iter(group))[0] for group in plan.part(1, 1)] == ["MeZO", "MeZO", "n-SPSA", "n-SPSA", "zero-shot"]


def test_parts_at_once_give_the_table_of_one_process(table, tmp_path, capfd):
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps({**table, "lr_by": "task", "forwards": [1, 12]}))
    found = []
    for name, flags in (("alone", []), ("jobs", ["--jobs", "2"])):
        assert main(["bench", "methods", str(plan), "--out", str(tmp_path / name), "--json", *flags]) == 0
        found.append(json.loads(capfd.readouterr().out)["rows"])
    assert found[0] == found[1]
    assert "7 runs" not in (tmp_path / "jobs" / "jobs" / "1.log").read_text()  # a part is not all
    assert main(["bench", "methods", str(plan), "--out", str(tmp_path / "jobs"), "--part", "3/2"]) == 2
    assert main(["bench", "methods", str(plan), "--out", str(tmp_path / "jobs"), "--jobs", "0"]) == 2


def test_the_table_so_far_is_of_what_has_ended_and_runs_nothing(table, tmp_path):
    plan, folder = plan_of(table), tmp_path / "out"
    begin(plan, folder)
    bench_part(plan, folder, (1, 3), watcher=Silent())  # the first method's runs
    files = sorted(folder.rglob("*.json"))
    first, second, zero_shot = bench_methods(plan, folder, watcher=Silent(), so_far=True)["rows"]
    assert first["tasks"]["sst2"]["seeds"] == 2
    assert (second["forwards"], second["tasks"]["sst2"]["seeds"], zero_shot["end"]) == ([None] * 3, 0, None)
    assert sorted(folder.rglob("*.json")) == sorted([*files, folder / "methods.json"])
    assert (first["runs"], second["runs"], second["planned"]) == (2, 0, 2)
    assert "n-SPSA (0 of 2 runs)" in text(bench_methods(plan, folder, watcher=Silent(), so_far=True))
    elsewhere = plan_of({**table, "data": "elsewhere"})  # a plan is the same wherever its data are
    assert bench_methods(elsewhere, folder, watcher=Silent(), so_far=True)["rows"][0] == first


def test_a_part_that_fails_is_named_with_its_last_words(table, tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps({**table, "model": str(tmp_path / "none")}))
    assert main(["bench", "methods", str(plan), "--out", str(tmp_path / "out"), "--jobs", "2"]) == 2
    assert "nothing of this plan ran" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--estimate",), ("--so-far",), ("--jobs", "2")])
def test_a_part_takes_no_other_way_of_going_through_a_plan(table, tmp_path, capsys, flags):
    plan = tmp_path / "plan.toml"
    plan.write_text(tomli_w.dumps(table))
    assert main(["bench", "methods", str(plan), "--part", "1/2", "--out", str(tmp_path / "out"), *flags]) == 2
    assert f"--part and {flags[0]} are both given" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""Point 7: a sweep tries every combination, goes on where it was stopped, and chooses by validation."""

import json
import shlex

import pytest

import noback as package
from noback.cli.sweep import text
from noback.engines import Models, kept
from noback.errors import Diverged, InputError
from noback.journal import read_journal
from noback.rules import Sgd
from noback.sweeping import Planned, resume_sweep, settings_of, sweep
from noback.training import Interrupted, resume, train

OVER = {"lr": [1e-5, 1e-3], "seed": [0, 1]}


@pytest.fixture
def flags(tiny_folder, data_folder):
    return ["--model", tiny_folder, "--data", data_folder, "--steps", 3, "--batch", 4, "--device", "cpu"]


def test_each_combination_is_an_ordinary_run(small, tmp_path):
    table = package.sweep(small(), OVER, tmp_path / "sweep")
    names = ["lr-1e-05-seed-0", "lr-1e-05-seed-1", "lr-0.001-seed-0", "lr-0.001-seed-1"]
    assert [row["name"] for row in table["rows"]] == names
    train(small(rule=Sgd(lr=1e-3), seed=1), tmp_path / "alone")
    ours, alone = (read_journal(path / "journal") for path in (tmp_path / "sweep" / names[3], tmp_path / "alone"))
    assert (ours.steps, ours.evaluations, ours.header) == (alone.steps, alone.evaluations, alone.header)


@pytest.mark.parametrize("adapter", ["full", "lora", "head"])
def test_a_sweep_opens_the_models_files_once_and_no_run_sees_anothers_weights(
    adapter, small, tmp_path, monkeypatch, tiny_folder
):
    opened = []
    for name in ("open_model", "open_classifier"):
        real = getattr(kept, name)
        monkeypatch.setattr(kept, name, lambda *a, real=real, **k: opened.append(a) or real(*a, **k))
        monkeypatch.setattr(f"noback.run.{name}", lambda *a, **k: pytest.fail("the model's files were opened again"))
    config = package.RunConfig(**{**vars_of(small()), "adapter": adapters()[adapter]})
    table = sweep(config, {"lr": [1e-3, 1e-2]}, tmp_path / "sweep")
    assert len(opened) == 1
    monkeypatch.undo()
    for row in table["rows"]:
        before = read_journal(tmp_path / "sweep" / row["name"] / "journal")
        lr = row["setting"]["rule.lr"]
        train(package.RunConfig(**{**vars_of(config), "rule": Sgd(lr=lr)}), tmp_path / row["name"])
        assert read_journal(tmp_path / row["name"] / "journal").steps == before.steps


def adapters():
    return {"full": package.Full(), "lora": package.Lora(), "head": package.Head()}


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize("again", ["command", "resume"])
def test_a_sweep_that_was_stopped_goes_on_and_ends_as_one_that_never_was(again, small, tmp_path, monkeypatch):
    whole = sweep(small(), OVER, tmp_path / "whole")
    asked = iter([False] * 6 + [True])  # in the second run
    with pytest.raises(Interrupted, match="nothing is lost"):
        sweep(small(), OVER, tmp_path / "parts", stop=lambda: next(asked))
    trained = []
    for name, real in (("train", train), ("resume", resume)):
        monkeypatch.setattr(
            f"noback.sweeping.{name}", lambda *a, real=real, name=name, **k: trained.append(name) or real(*a, **k)
        )
    parts = sweep(small(), OVER, tmp_path / "parts") if again == "command" else resume_sweep(tmp_path / "parts")
    assert trained == ["resume", "train", "train"]  # the first had ended
    told = [{key: row[key] for key in row if key != "seconds"} for row in parts["rows"]]
    assert told == [{key: row[key] for key in row if key != "seconds"} for row in whole["rows"]]
    assert parts["winner"] == whole["winner"]
    trained.clear()
    sweep(small(), OVER, tmp_path / "parts")
    assert trained == []


def test_a_run_that_diverges_is_a_row_and_not_the_end(small, tmp_path, monkeypatch):
    def sometimes(config, *arguments, **options):
        if config.lr == 1e-3 and config.seed == 1:
            raise Diverged("its loss is nan")
        return train(config, *arguments, **options)

    monkeypatch.setattr("noback.sweeping.train", sometimes)
    table = sweep(small(), OVER, tmp_path / "sweep")
    assert [("gap" in row, row["verdict"] == "diverging") for row in table["rows"]][-1] == (True, True)
    assert (table["finished"], table["settings"][1]["diverged"]) == (True, 1)
    assert table["winner"]["setting"] == {"rule.lr": 1e-5}  # the other has not a result for each seed


def test_the_highest_mean_validation_score_wins_and_ties_go_to_the_lower_loss():
    from noback.sweeping import _winner

    plan = [
        Planned(f"{lr}-{seed}", {"rule.lr": lr}, package.RunConfig(seed=seed)) for lr in (1, 2, 3) for seed in (0, 1)
    ]
    scores = {
        "1-0": (0.9, 0.5),
        "1-1": (0.5, 0.5),
        "2-0": (0.7, 0.4),
        "2-1": (0.7, 0.4),
        "3-0": (0.8, 0.1),
        "3-1": (0.5, 0.1),
    }
    rows = [
        {"name": name, "validation": score, "validation_loss": loss, "before": 0.5, "test": 0.5}
        for name, (score, loss) in scores.items()
    ]
    settings = settings_of(rows, plan)
    assert [round(one["validation"], 3) for one in settings] == [0.7, 0.7, 0.65]
    assert _winner(settings, plan)["setting"] == {"rule.lr": 2}
    assert _winner(settings_of(rows[:3], plan), plan)["setting"] == {"rule.lr": 1}


def test_the_command_takes_lists_names_the_winner_and_how_to_repeat_it(noback, flags, tmp_path):
    command = ["sweep", *flags, "--lr", "1e-5,1e-3", "--set", "estimator.directions=1,2", "--out", tmp_path / "sweep"]
    code, out, err = noback(*command, "--json")
    assert code == 0, err
    table = json.loads(out)
    assert table["over"] == {"rule.lr": [1e-5, 1e-3], "estimator.directions": [1, 2]}
    assert len(table["rows"]) == 4
    code, out, _ = noback(*command)
    (repeat,) = [line.partition(": ")[2] for line in out.splitlines() if line.startswith("repeat it: noback train")]
    code, _, err = noback(*shlex.split(repeat)[1:], "--out", tmp_path / "again", "--json")
    assert code == 0, err
    winner = table["winner"]["runs"][0]
    assert (
        read_journal(tmp_path / "again" / "journal").steps
        == read_journal(tmp_path / "sweep" / winner / "journal").steps
    )


def test_the_page_of_a_sweep_shows_settings_runs_and_the_winners_command(noback, flags, tmp_path):
    assert noback("sweep", *flags, "--lr", "1e-5,1e-3", "--seed", "0,1", "--out", tmp_path / "sweep")[0] == 0
    code, out, _ = noback("report", tmp_path / "sweep", "--markdown")
    assert (code, "lr 1e-05" in out, "lr 0.001" in out, "noback train" in out) == (0, True, True, True)
    code, out, _ = noback("report", tmp_path / "sweep", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "sweep")
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert all(
        name in page for name in ("lr-1e-05-seed-0", "lr-0.001-seed-1", "sweep-validation", "Best by validation")
    )


def test_the_same_command_without_out_finds_its_own_folder(noback, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [
        json.loads(noback("sweep", *flags, "--seed", seeds, "--json")[1])["folder"] for seeds in ("0,1", "0,1", "0,2")
    ]
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "nothing to sweep over"),
        (["--lr", "1e-5,many"], "lr is 'many'; expected a number"),
        (["--lr", "1e-5,1e-5"], "expected each value once"),
        (["--lr", "1e-5,,1e-4"], "expected words with commas between"),
        (["--lr", "1e-5,-1"], "lr is -1.0"),
        (
            ["--batch", ",".join(map(str, range(1, 200))), "--seed", ",".join(map(str, range(200)))],
            "expected 1 to 10,000",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_is_made(given, said, noback, flags, tmp_path):
    code, out, err = noback("sweep", *flags, *given, "--out", tmp_path / "sweep")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "sweep").exists()


def test_a_folder_of_something_else_is_refused(small, tmp_path):
    sweep(small(steps=1), {"seed": [0]}, tmp_path / "sweep")
    with pytest.raises(InputError, match="holds another sweep"):
        sweep(small(steps=2), {"seed": [0]}, tmp_path / "sweep")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no sweep"):
        sweep(small(), {"seed": [0]}, tmp_path / "full")
    (tmp_path / "sweep" / "sweep.json").write_text("[]")
    with pytest.raises(InputError, match="is no sweep's table"):
        resume_sweep(tmp_path / "sweep")


def test_the_kept_model_stays_as_it_was_opened(tiny_folder):
    import torch

    models = Models()
    first = models.open_model(str(tiny_folder), "float32", torch.device("cpu")).model
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.zero_()
    second = models.open_model(str(tiny_folder), "float32", torch.device("cpu")).model
    assert any(tensor.abs().sum() > 0 for tensor in second.parameters())


def test_from_python_what_is_a_list_is_swept_over(tiny_folder, data_folder, tmp_path):
    known = {"model": tiny_folder, "data": data_folder, "steps": 1, "batch": 4}
    table = package.sweep(lr=[1e-5, 1e-4], out=tmp_path / "sweep", **known)
    assert table["over"] == {"rule.lr": [1e-5, 1e-4]}
    assert [row["setting"] for row in table["rows"]] == [{"rule.lr": 1e-5}, {"rule.lr": 1e-4}]
    assert "\nlr " in text(table)
    assert "best by validation: lr " in text(table)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learning_rate": [1, 2]}, "unknown option 'learning_rate': here it is lr"),
        ({"data": [{"text": "good", "label": 1}], "seed": [0, 1]}, "data is given in memory, which only noback.train"),
        ({"lr": []}, "lr"),
    ],
)
def test_a_sweep_from_python_that_cannot_be_is_refused(options, sentence, tmp_path):
    with pytest.raises(package.InputError, match=sentence):
        package.sweep(out=tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()


ROW = {"name": "seed-0", "setting": {}, "validation": 0.5, "validation_loss": 0.7, "before": 0.5, "test": 0.5}
CHANGES = {
    "nothing": {},
    "no task": {"task": None},
    "no metric": {"metric": 3},
    "steps are a text": {"steps": "4"},
    "a row without numbers": {"rows": [{"name": "seed-0", "validation": 0.5}]},
    "a row of texts": {"rows": [{**ROW, "validation": "high", "test": [1]}]},
    "a row of no numbers": {"rows": [{**ROW, "validation_loss": float("nan")}]},
    "no list of values": {"over": {"seed": 0}},
    "an option that does not exist": {"over": {"seed/../..": [0]}},
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_sweeps_table_that_someone_changed_is_read_or_refused_without_a_traceback(how, small, tmp_path, noback):
    told = {"kind": "sweep", "task": "reviews", "steps": 4, "batch": 4, "metric": "accuracy"}
    table = {"config": small().given(), "over": {"seed": [0]}, "rows": [ROW], **told}
    (tmp_path / "sweep.json").write_text(json.dumps({**table, **CHANGES[how]}))
    code, out, err = noback("resume", tmp_path)
    assert code == (0 if "nothing" in how or "row" in how else 2), err
    assert ("best by validation" in out) == (how == "nothing")

"""Point 3: a run is evaluated by the task that its journal holds, on the data that it was trained from, or says so."""

import json
import shutil

import pytest
import tomli_w

from noback import RunConfig, Sgd, TwoSided, train
from tests.conftest import NEGATIVE, POSITIVE

TASK = {
    "name": "own",
    "template": "*cls**sent_0*_It_was*mask*.*sep+*",
    "words": {"0": "terrible", "1": "great"},
    "sentences": ["sentence"],
}
TEXTS = [f"{text}, part {part}" for part in range(5) for text in (*POSITIVE, *NEGATIVE)]


def write_csv(path, rows):
    path.write_text("sentence,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder):
    """A run of a task file and one CSV file, of which the splits are drawn."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.toml").write_text(tomli_w.dumps(TASK))
    write_csv(folder / "data.csv", [(text, int(index % 8 < 4)) for index, text in enumerate(TEXTS)])
    method = {"rule": Sgd(lr=1e-2), "estimator": TwoSided(eps=1e-2), "steps": 3, "batch": 4}
    config = RunConfig(model=str(tiny_folder), task=str(folder / "own.toml"), data=str(folder / "data.csv"), **method)
    train(config, folder / "run")
    return folder


@pytest.fixture
def own(trained):
    """The same files each time: the run names them by their whole paths."""
    kept = {name: (trained / name).read_bytes() for name in ("own.toml", "data.csv")}
    yield trained
    for name, data in kept.items():
        (trained / name).write_bytes(data)


@pytest.fixture
def evaluated(noback):
    def call(run, *flags):
        code, out, err = noback("evaluate", run, "--json", *flags)
        assert code == 0, err
        return json.loads(out)

    return call


@pytest.mark.parametrize(
    "changed",
    [{"words": {"1": "great", "0": "terrible"}}, {"sentences": ["label"]}, {"template": "*cls**sent_0**mask**sep+*"}],
)
def test_a_task_file_changed_after_training_changes_no_answer(own, evaluated, noback, changed, tmp_path):
    before = evaluated(own / "run")
    answer = noback("predict", own / "run", "a fine film", "--json")
    (own / "own.toml").write_text(tomli_w.dumps({**TASK, **changed}))
    assert evaluated(own / "run") == before
    assert noback("predict", own / "run", "a fine film", "--json") == answer
    assert noback("export", own / "run", tmp_path / "out")[0] == 0


def test_a_run_whose_task_file_is_gone_is_evaluated_all_the_same(own, evaluated):
    before = evaluated(own / "run")
    (own / "own.toml").unlink()
    assert evaluated(own / "run") == before


def test_data_that_has_changed_is_refused_and_the_ways_on_are_named(own, noback):
    with open(own / "data.csv", "a") as file:
        file.write('"one more film",1\n')
    code, out, err = noback("evaluate", own / "run")
    assert (code, out) == (2, "")
    assert "has changed since it was trained" in err
    assert "--data-changed-ok" in err
    assert "--data" in err


def test_rows_that_were_trained_on_are_counted_where_data_has_changed(own, evaluated):
    """One more row draws the test set anew: some of the rows in it were trained on."""
    from noback.run_data import rows_as_bytes
    from noback.tasks.overlap import fingerprint

    with open(own / "data.csv", "a") as file:
        file.write('"one more film",1\n')
    notes = evaluated(own / "run", "--data-changed-ok")["notes"]
    assert any("has changed since it was trained" in note for note in notes)
    said = [note for note in notes if "were trained on" in note]
    assert len(said) == 1
    # The same count by hand: of the test rows drawn now, those whose text is among the recorded ones.
    from noback.run import drawn_data
    from noback.tuned import open_run

    run, _ = open_run(own / "run")
    recorded = (own / "run" / "trained-rows").read_bytes()
    test = drawn_data(run.config, run.spec).splits["test"]
    seen = sum(fingerprint(one.sentences) in recorded for one in test)
    assert 0 < seen < len(test)
    assert said[0].startswith(f"{seen} of these {len(test)} examples were trained on")
    assert len(recorded) == len(rows_as_bytes(recorded[at : at + 8] for at in range(0, len(recorded), 8)))


def test_other_data_is_asked_for_rows_that_were_trained_on(own, evaluated, tmp_path):
    rows = [(text, int(index % 8 < 4)) for index, text in enumerate(TEXTS)]
    write_csv(tmp_path / "same.csv", rows)
    write_csv(tmp_path / "other.csv", [(f"quite another {text}", label) for text, label in rows])
    notes = evaluated(own / "run", "--data", tmp_path / "same.csv")["notes"]
    assert "23 of these 40 examples were trained on, by their text: this score is flattered" in notes
    assert not [note for note in evaluated(own / "run", "--data", tmp_path / "other.csv")["notes"] if "trained" in note]


def test_a_row_is_found_again_in_another_case_and_spacing(own, evaluated, tmp_path):
    rows = [(f"  {text.upper()} ", int(index % 8 < 4)) for index, text in enumerate(TEXTS)]
    write_csv(tmp_path / "loud.csv", rows)
    notes = evaluated(own / "run", "--data", tmp_path / "loud.csv")["notes"]
    assert any(note.startswith("23 of these 40 examples were trained on") for note in notes)


def test_where_the_folder_does_not_say_which_rows_were_trained_on_that_is_said(own, evaluated, tmp_path):
    write_csv(tmp_path / "other.csv", [(f"another {text}", int(index % 8 < 4)) for index, text in enumerate(TEXTS)])
    shutil.copytree(own / "run", tmp_path / "run")
    for damage in (lambda path: path.write_bytes(path.read_bytes()[8:]), lambda path: path.unlink()):
        damage(tmp_path / "run" / "trained-rows")
        notes = evaluated(tmp_path / "run", "--data", tmp_path / "other.csv")["notes"]
        assert any("is not known" in note for note in notes)
        # Of the run's own data, as long as it is the same, the training rows are known without the file.
        assert not [note for note in evaluated(tmp_path / "run")["notes"] if "not known" in note]


def test_a_run_with_demonstrations_is_evaluated_by_its_recorded_prompt(
    tiny_causal_folder, data_folder, tmp_path, evaluated
):
    config = RunConfig(
        model=str(tiny_causal_folder), task="reviews-causal", data=str(data_folder), demonstrations=2, steps=1, batch=2
    )
    result = train(config, tmp_path / "run")
    found = evaluated(tmp_path / "run", "--at", "final")
    assert (found["accuracy"], found["weights"]) == (result.final, result.final_weights)

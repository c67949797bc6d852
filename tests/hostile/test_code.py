"""Point 6, code: a function that a folder names is never imported unless the user says so."""

import json
import sys

import pytest

from noback import InputError, resume
from noback.comparing import resume_comparison
from noback.journal import read_header
from noback.sweeping import resume_sweep
from noback.tuned import evaluate, tuned_run
from tests.hostile.forging import forge
from tests.hostile.rewarding import rewarded_run

MODULE = "harmful_module"


@pytest.fixture
def harmful(tmp_path, monkeypatch):
    """A module in the current folder that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{MODULE}.py").write_text(
        "import pathlib\npathlib.Path('mark').write_text('harm')\ndef f(*_):\n    return 0.5\n"
    )
    yield tmp_path / "mark"
    sys.modules.pop(MODULE, None)


def named(header):
    header["config"]["objective"] = {"kind": "function", "function": f"{MODULE}:f", "reads": "logits", "smooth": False}


@pytest.mark.parametrize("command", ["resume", "evaluate", "predict", "export", "replay", "report", "journal"])
def test_no_command_imports_a_function_that_a_folder_names(unfinished, harmful, noback, command):
    forge(unfinished, header=named)
    more = {"predict": ["a film"], "export": ["out"], "replay": ["out"]}.get(command, [])
    code, _, err = noback(command, unfinished, *more)
    assert not harmful.exists()
    assert code == (2 if command == "resume" else 0), err
    if command == "resume":
        assert f"names the function 'f' of module '{MODULE}'" in err
        assert "--trust" in err


def test_a_folder_that_is_trusted_goes_on(unfinished, harmful, noback):
    forge(unfinished, header=named)
    assert noback("resume", unfinished, "--trust")[0] == 0
    assert harmful.exists()


@pytest.fixture
def rewarded(tiny_causal_folder, tmp_path):
    """A run whose answers a reward judges, forged to name another function."""
    run = rewarded_run(tiny_causal_folder, tmp_path)

    def name(header):
        header["config"]["objective"]["function"] = f"{MODULE}:f"

    forge(run, header=name)
    return run


def test_a_reward_that_a_folder_names_is_not_called_by_evaluate(rewarded, harmful, noback):
    code, _, err = noback("evaluate", rewarded)
    assert (code, harmful.exists()) == (2, False)
    assert f"names the function 'f' of module '{MODULE}'" in err
    assert noback("evaluate", rewarded, "--trust")[0] == 0
    assert harmful.exists()


def test_python_asks_for_trust_too(rewarded, unfinished, harmful):
    forge(unfinished, header=named)
    for call in (lambda: resume(unfinished), lambda: evaluate(tuned_run(rewarded)[0])):
        with pytest.raises(InputError, match="trust=True"):
            call()
    assert not harmful.exists()


def test_a_comparison_that_names_a_function_asks_for_trust(run, harmful, noback, tmp_path):
    folder = tmp_path / "comparison"
    folder.mkdir()
    table = {
        "config": read_header(run / "journal")["config"],
        "objectives": [f"{MODULE}:f"],
        "eps": [1e-2],
        "rows": [],
    }
    (folder / "comparison.json").write_text(json.dumps(table))
    code, _, err = noback("resume", folder)
    assert (code, harmful.exists()) == (2, False)
    assert "--trust" in err
    with pytest.raises(InputError, match="trust"):
        resume_comparison(folder)


def test_a_run_inside_a_sweep_that_names_a_function_asks_for_trust(unfinished, harmful, noback, tmp_path):
    """The sweep's own table names none: the run's journal does."""
    config = read_header(unfinished / "journal")["config"]
    forge(unfinished, header=named)
    folder = tmp_path / "sweep"
    folder.mkdir()
    unfinished.rename(folder / "seed-0")
    told = {"task": "reviews", "steps": 6, "metric": "accuracy"}
    table = {"config": config, "over": {"seed": [0]}, "rows": [], **told}
    (folder / "sweep.json").write_text(json.dumps(table))
    code, _, err = noback("resume", folder)
    assert (code, harmful.exists()) == (2, False)
    assert f"names the function 'f' of module '{MODULE}'" in err
    with pytest.raises(InputError, match="trust"):
        resume_sweep(folder)

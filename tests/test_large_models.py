"""The page of large models says what its script works out, and the script what its results file has."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("large_models", ROOT / "benchmarks" / "large_models.py")
    module = sys.modules["large_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu():
    return json.loads((ROOT / "benchmarks" / "results" / "gpu.json").read_text())


def test_the_page_has_the_tables_of_the_measured_figures(script, gpu):
    found = script.results(gpu)
    kept = json.loads(script.RESULTS.joinpath("large-models.json").read_text())
    assert json.loads(json.dumps(found)) == kept
    page = script.PAGE.read_text()
    assert script.written(page, script.tables(found)) == page
    assert script.written(page, {"steps": "| other |"}) != page


def test_the_formula_of_memory_gives_what_was_measured(script, gpu):
    check = script.results(gpu)["check"]
    assert check["formula"] == pytest.approx(check["measured"], rel=0.02)


def test_a_shape_has_the_weights_of_its_name(script):
    sizes = {model.name: model.weights / 1e9 for model in (*script.MODELS, script.OPT_13B)}
    assert sizes == pytest.approx(
        {"OPT-30B": 30, "OPT-66B": 66, "Llama-70B": 70.6, "Llama-405B": 405.9, "OPT-13B": 12.85}, rel=0.01
    )


def test_embeddings_are_whole_on_every_rank(script, gpu):
    model, seen = script.MODELS[-1], script.measured(gpu)
    saved = script.memory(model, 4, 0, seen) - script.memory(model, 8, 0, seen)
    divided = model.layers * model.layer + script.POINTS * model.width * model.inner
    assert saved == pytest.approx(script.BYTES * divided / 8)


def test_a_model_that_fits_on_no_machine_is_none(script, gpu):
    small = dataclasses.replace(script.Assumed(), memory=50e9)
    assert script.step(script.MODELS[-1], 64, script.measured(gpu), small) is None


@pytest.mark.parametrize("ranks", [8, 1024])
def test_without_delays_and_failures_all_time_but_the_gather_is_useful(script, ranks):
    never = dataclasses.replace(script.Assumed(), jitter=0.0, stall=0.0, hours_between_failures=1e12, hop=0.0)
    assert script.simulated(ranks, 0.5, 0.01, never)["useful"] == pytest.approx(1.0)
    slow = dataclasses.replace(never, hop=1e-3)
    assert script.simulated(ranks, 0.5, 0.01, slow)["useful"] == pytest.approx(0.5 / (0.5 + 1e-3 * (ranks - 1)))

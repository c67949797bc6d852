"""noback engine load: the tuned adapter answers on the server as it does here, or is taken back."""

from __future__ import annotations

import json

import pytest
import torch

from noback import tuned_run
from noback.engines.servers.options import ServerEngine
from noback.engines.servers.server import Limits
from noback.serving import load
from tests.conftest import tiny_causal
from tests.engines.servers.stand_in import StandIn

ADDRESS = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tokenizer):
    """A short LoRA run of a tiny causal model."""
    from noback.cli.main import main

    place = tmp_path_factory.mktemp("run")
    tiny_causal("llama").save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    words = ["--model", place / "model", "--task", "reviews-causal", "--adapter", "lora", "--steps", "3",
             "--batch", "4", "--test-limit", "8", "--lr", "0.3", "--out", place / "run"]  # fmt: skip
    assert main(["train", *map(str, words)]) == 0
    return place / "run"


@pytest.fixture
def server(monkeypatch):
    made = StandIn(tiny_causal("llama"), ADDRESS)
    monkeypatch.setattr(ServerEngine, "servers", lambda _: [made])
    return made


def test_the_adapter_is_there_under_its_name_with_the_runs_weights(noback, server, run_folder):
    code, out, err = noback("engine", "load", run_folder, ADDRESS, "reviews", "--at", "final", "--json")
    assert code == 0, err
    told = json.loads(out)
    run, step = tuned_run(run_folder, "final")
    assert (told["name"], told["step"], told["weights"]) == ("reviews", step, run.weights.digest())
    assert told["difference"] < 1e-4
    held = server.adapters["reviews"]
    for name, tensor in run.weights.tensors.items():
        assert torch.equal(held["base_model.model." + name.replace(".default.", ".")], tensor)
    assert told["body"]["adapter"] == "reviews"


def test_what_the_request_asks_is_what_the_task_asks(server, run_folder):
    loaded = load(run_folder, ADDRESS, "reviews")
    task = tuned_run(run_folder)[0].task
    assert loaded.body["prompt"] == list(task.asked([("<sentence>",)])[0])  # this tokenizer would end the text itself


def test_a_name_that_is_there_is_replaced_when_asked(noback, server, run_folder):
    load(run_folder, ADDRESS, "reviews")
    code, _, err = noback("engine", "load", run_folder, ADDRESS, "reviews")
    assert code == 2
    assert "--replace" in err
    server.names.clear()
    assert load(run_folder, ADDRESS, "reviews", at="base", again=True).step == 0


def test_an_adapter_that_answers_otherwise_there_is_taken_back(noback, server, run_folder):
    with torch.no_grad():
        for tensor in server._model.parameters():
            tensor.mul_(1.5)
    code, out, err = noback("engine", "load", run_folder, ADDRESS, "reviews")
    assert (code, out) == (2, "")
    assert "taken back" in err
    assert not server.adapters


@pytest.mark.parametrize("name", ["noback-reviews", "", "a b", "a/b", ".a", "a" * 64])
def test_a_name_that_no_adapter_can_have_is_refused(noback, server, run_folder, name):
    code, _, err = noback("engine", "load", run_folder, ADDRESS, name)
    assert code == 2
    assert "cannot be an adapter's" in err


def test_a_server_that_takes_none_is_refused_with_the_flag(noback, server, run_folder):
    import dataclasses

    server.said = dataclasses.replace(server.said, lora=Limits(2, 8, None))
    code, _, err = noback("engine", "load", run_folder, ADDRESS, "reviews")
    assert code == 2
    assert "--max-lora-rank 8" in err


def test_a_run_without_an_adapter_is_refused(noback, server, tmp_path, run_folder):
    place = run_folder.parent / "model"
    code, _, err = noback("train", "--model", place, "--task", "reviews-causal", "--steps", "1", "--batch", "2",
                          "--test-limit", "4", "--out", tmp_path / "full")  # fmt: skip
    assert code == 0, err
    code, _, err = noback("engine", "load", tmp_path / "full", ADDRESS, "reviews")
    assert code == 2
    assert "LoRA" in err


def test_a_run_with_a_readout_is_refused(noback, server, tmp_path, run_folder):
    place = run_folder.parent / "model"
    code, _, err = noback("train", "--model", place, "--task", "reviews-causal", "--adapter", "lora", "--steps", "1",
                          "--batch", "4", "--test-limit", "4", "--readout", "exact", "--readout-decay", "0.1",
                          "--readout-examples", "8", "--out", tmp_path / "fitted")  # fmt: skip
    assert code == 0, err
    code, _, err = noback("engine", "load", tmp_path / "fitted", ADDRESS, "reviews")
    assert code == 2
    assert "a server's adapters have no place for its rows" in err
    assert not server.names

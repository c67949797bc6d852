"""Whole runs over a stand-in of a server: the base is never in memory, and what can be done with the run afterwards."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import noback
from noback import Lora, RunConfig, Sgd, SglangEngine, TwoSided, evaluate, tuned_run
from noback.config import config_of
from noback.embedded import MODELS
from noback.engines import open_model
from noback.engines.outline import is_same_model, open_outline
from noback.errors import InputError
from noback.journal import read_journal
from noback.training import Interrupted, resume, train
from tests.conftest import tiny_causal
from tests.engines.servers.stand_in import StandIn


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    place = tmp_path_factory.mktemp("served") / "model"
    tiny_causal("llama").save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def server(folder, monkeypatch):
    found = StandIn(open_model(str(folder), "float32", causal=True).model, model=str(folder))
    monkeypatch.setattr(SglangEngine, "servers", lambda self: [found])
    return found


def config(folder, **options):
    return RunConfig(**{
        "model": str(folder), "task": "reviews-causal", "steps": 4, "batch": 4, "test_limit": 8, "eval_every": 4,
        "estimator": TwoSided(eps=1e-2), "adapter": Lora(rank=2), "engine": SglangEngine(), "shots": 4, **options,
    })  # fmt: skip


def test_a_run_never_holds_the_base_and_its_slopes_and_base_are_those_of_a_local_run(server, folder, tmp_path):
    there = train(config(folder), tmp_path / "there")
    here = train(config(folder, engine="local"), tmp_path / "here")
    one, other = (read_journal(tmp_path / name / "journal") for name in ("there", "here"))
    ours, theirs = (torch.tensor([step.slopes for step in each.steps]) for each in (one, other))
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()
    assert (one.header["base"], one.header["start"]) == (other.header["base"], other.header["start"])
    assert one.header["server"] == server.said.recorded()
    assert "url" not in json.dumps(one.header["config"])
    run, _ = tuned_run(tmp_path / "there")
    frozen = [tensor for name, tensor in run.model.named_parameters() if name not in run.weights.names]
    assert all(tensor.is_meta for tensor in frozen)
    assert there.best == here.best
    assert evaluate(run)[0].accuracy == there.best
    assert evaluate(tuned_run(tmp_path / "there", engine="local")[0])[0].accuracy == there.best
    assert evaluate(tuned_run(tmp_path / "here", engine="sglang")[0])[0].accuracy == here.best


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(server, folder, tmp_path):
    whole = train(config(folder), tmp_path / "whole")
    steps = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(config(folder), tmp_path / "stopped", stop=lambda: next(steps))
    assert resume(tmp_path / "stopped", url="http://elsewhere:1").final_weights == whole.final_weights


def test_a_rate_is_found_on_a_server_and_the_run_is_the_one_of_that_rate(server, folder, tmp_path):
    found = train(config(folder, rule=Sgd(lr="auto")), tmp_path / "found")
    rate = config_of(read_journal(tmp_path / "found" / "journal").header["config"]).lr
    given = train(config(folder, rule=Sgd(lr=rate)), tmp_path / "given")
    assert found.screening_forwards > 0
    assert found.final_weights == given.final_weights
    assert (tmp_path / "found" / "journal").read_bytes() == (tmp_path / "given" / "journal").read_bytes()


def test_an_export_is_the_adapter_that_a_local_run_would_write(server, folder, tmp_path):
    train(config(folder), tmp_path / "run")
    noback.export(tmp_path / "run", tmp_path / "there")
    noback.export(tuned_run(tmp_path / "run", engine="local")[0], tmp_path / "here")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    with pytest.raises(InputError, match="--merge needs the base's weights"):
        noback.export(tmp_path / "run", tmp_path / "merged", merge=True)


def test_a_base_whose_weights_are_only_on_the_server_is_named_when_the_run_is_used_here(server, folder, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "model.safetensors").unlink()
    trained = train(config(bare), tmp_path / "run")
    assert read_journal(tmp_path / "run" / "journal").header["base"] == ""
    assert evaluate(tuned_run(tmp_path / "run")[0])[0].accuracy == trained.best
    with pytest.raises(InputError):
        tuned_run(tmp_path / "run", engine="local")
    run, _ = tuned_run(tmp_path / "run", engine="local", model=str(folder))
    assert evaluate(run)[0].accuracy == trained.best


def test_another_base_model_than_the_servers_is_refused(server, folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="whose weights are others"):
        train(config(other), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not server.names
    assert is_same_model(str(folder), str(folder)) is True
    assert is_same_model(str(folder), "/not/here") is None


def test_the_outline_has_the_digest_of_the_model_in_memory(folder):
    from noback.adapters import base_tensors
    from noback.tensor_bytes import digest

    assert open_outline("mini-causal", "float32")[1] == digest(
        base_tensors(open_model("mini-causal", "float32", causal=True).model)
    )
    assert str(MODELS["mini-causal"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "reviews", "model": "mini"}, "serves causal models"),
        ({"adapter": "full"}, "expected lora"),
        ({"quantise": "int8"}, "start the server with a quantised model"),
        ({"dtype": "bfloat16"}, "expected float32"),
    ],
)
def test_runs_that_no_server_can_score_are_refused(server, folder, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        train(config(folder, **options), tmp_path / "run")


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://a", "http://", "http://name:secret@a:1", "http://a:1?key=b"])
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url):
    with pytest.raises(InputError, match=r"engine\.url"):
        SglangEngine(url=url)


def test_a_local_run_has_no_address(folder):
    with pytest.raises(InputError, match="'local' is in this process"):
        config(folder, engine="local").engine.at("http://a:1")


def test_answers_that_are_written_are_not_asked_of_a_server():
    with pytest.raises(InputError, match="answers are written"):
        SglangEngine().check(adapter=Lora(), causal=True, written=True, dtype="float32", quantise=None)


def test_a_baseline_needs_the_model_here(folder):
    with pytest.raises(InputError, match="--engine local"):
        noback.baseline("zero-shot", config(folder))

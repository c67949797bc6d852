"""Tuning over real servers: slopes as here, servers that are killed, and servers that cannot do the work."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from noback import Lora, RunConfig, Sgd, SglangEngine, TwoSided, VllmEngine, evaluate, tuned_run
from noback.errors import InputError
from noback.journal import read_journal
from noback.training import train
from noback.watching import Silent
from tests.servers.adapters import adapter_tensors, write_adapter
from tests.servers.conftest import SHARED, of_worlds
from tests.servers.starting import lora_flags, serving

pytestmark = pytest.mark.server
TARGETS = "q_proj,v_proj"
KINDS = {"sglang": SglangEngine, "vllm": VllmEngine}
LOAD = {"sglang": "/load_lora_adapter", "vllm": "/v1/load_lora_adapter"}
STEPS = 10
by_engine = pytest.mark.parametrize("engine", [*KINDS])


def config(model, **options):
    return RunConfig(
        model=str(model), task="reviews-causal", steps=STEPS, batch=16, test_limit=32, eval_every=STEPS,
        estimator=TwoSided(eps=1e-2), rule=Sgd(lr=1e-3), adapter=Lora(targets=TARGETS), **options,
    )  # fmt: skip


def slopes(folder):
    return np.array([record.slopes[0] for record in read_journal(folder / "journal").steps])


def test_slopes_are_those_of_the_local_engine_and_nothing_stays_loaded(server, served, tmp_path):
    engine = server.engine
    there = train(config(served, engine=KINDS[engine](url=server.url)), tmp_path / "there")
    here = train(config(served), tmp_path / "here")
    ours, theirs = slopes(tmp_path / "there"), slopes(tmp_path / "here")
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)
    header = read_journal(tmp_path / "there" / "journal").header
    assert header["server"]["version"]
    assert header["base"] == read_journal(tmp_path / "here" / "journal").header["base"]
    assert there.best == here.best
    assert evaluate(tuned_run(tmp_path / "there", engine="local")[0])[0].accuracy == there.best
    over, _ = tuned_run(tmp_path / "here", engine=engine, url=server.url)
    assert evaluate(over)[0].accuracy == there.best
    over.engine.close()
    assert not [one["id"] for one in server.get("/v1/models")["data"] if one["id"].startswith("noback-")]


class Killing(Silent):
    """Kills the server after a step and starts it again."""

    def __init__(self, server, step):
        self.server, self._step, self.notes = server, step, []

    def stepped(self, step, *_args, **_kwargs):
        if step == self._step:
            self.server.kill()
            self.server = self.server.again()

    def note(self, text):
        self.notes.append(text)


@by_engine
def test_a_server_that_is_killed_and_started_again_leaves_the_runs_bits_as_they_were(served, tmp_path, engine):
    with serving(engine, served, *lora_flags(engine), *SHARED[engine]) as first:
        wanted = config(served, engine=KINDS[engine](url=first.url))
        undisturbed = train(wanted, tmp_path / "undisturbed")
        watcher = Killing(first, STEPS // 2)
        try:
            disturbed = train(wanted, tmp_path / "disturbed", watcher=watcher)
        finally:
            watcher.server.kill()
    assert any("is back" in note for note in watcher.notes)
    assert disturbed.final_weights == undisturbed.final_weights
    assert np.array_equal(slopes(tmp_path / "disturbed"), slopes(tmp_path / "undisturbed"))


@by_engine
def test_a_server_without_adapters_is_refused_before_the_run_has_a_folder(served, tmp_path, engine):
    with serving(engine, served) as one:
        with pytest.raises(InputError, match="takes no adapters; start it with --enable-lora"):
            train(config(served, engine=KINDS[engine](url=one.url)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


# Not vLLM with two ranks: once it has refused an adapter, it refuses the next one in the same words.
@of_worlds("sglang", "sglang-two-ranks", "vllm")
def test_a_server_of_a_lower_rank_or_another_base_is_refused_and_what_was_left_over_goes(server, served, tmp_path):
    wanted = config(served, engine=KINDS[server.engine](url=server.url))
    with pytest.raises(InputError, match="start it with --max-lora-rank 16"):
        train(replace(wanted, adapter=Lora(rank=16, targets=TARGETS)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    _check_another_model(server, served, tmp_path)
    _check_left_over(server, served, tmp_path)


def _check_another_model(server, served, tmp_path):
    """A model of the same form with other weights is not the one that is served."""
    other = tmp_path / "other"
    shutil.copytree(served, other)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="whose weights are others"):
        train(config(other, engine=KINDS[server.engine](url=server.url)), tmp_path / "run")


def _check_left_over(server, served, tmp_path):
    """What a killed process of the run left is unloaded when the run is begun or goes on."""
    from noback.engines.servers.remote import Names
    from noback.folder import RunFolder
    from noback.run import mark_of

    name = Names(mark_of(RunFolder(tmp_path / "run")))().split("-")
    left = "-".join([*name[:2], "another", *name[3:]])
    tensors = adapter_tensors(served, 1)
    write_adapter(tmp_path / "left", tensors)
    status, reply = server.post(LOAD[server.engine], {"lora_name": left, "lora_path": str(tmp_path / "left")})
    assert status == 200, reply
    train(config(served, engine=KINDS[server.engine](url=server.url)), tmp_path / "run")
    names = [one["id"] for one in server.get("/v1/models")["data"]]
    assert left not in names

"""Two real servers share a run, and one of them is killed in the middle of it."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from noback import SglangEngine
from noback.training import train
from noback.watching import Silent
from tests.servers.conftest import SHARED
from tests.servers.starting import Server, lora_flags
from tests.servers.test_tuning import STEPS, config, slopes

pytestmark = pytest.mark.server


class Ending(Silent):
    """Kills a server after a step, for good."""

    def __init__(self, server, step):
        self._server, self._step, self.notes = server, step, []

    def stepped(self, step, *_args, **_kwargs):
        if step == self._step:
            self._server.kill()

    def note(self, text):
        self.notes.append(text)


def prompts_scored(server):
    """How many requests for scores a server's log shows."""
    return server.log.read_text().count("POST /generate")


def test_two_servers_share_a_run_and_the_moves_are_the_same_when_one_is_killed_in_the_middle(served, tmp_path):
    """One of them alone gives the same but for rounding: it uses what earlier requests left in its cache."""
    flags = [*lora_flags("sglang"), *SHARED["sglang"]]
    with ExitStack() as stack:
        servers = [Server("sglang", served, flags) for _ in range(2)]
        for server in servers:
            stack.callback(server.kill)
        both = SglangEngine(url=",".join(server.wait().url for server in servers), micro_batch=4)
        undisturbed = train(config(served, engine=both), tmp_path / "undisturbed")
        assert all(prompts_scored(server) > STEPS for server in servers)
        train(config(served, engine=SglangEngine(url=servers[0].url, micro_batch=4)), tmp_path / "alone")
        watcher = Ending(servers[1], STEPS // 2)
        disturbed = train(config(served, engine=both), tmp_path / "disturbed", watcher=watcher)
    assert any("waiting for it" in note for note in watcher.notes)
    assert disturbed.final_weights == undisturbed.final_weights
    shared, one = slopes(tmp_path / "undisturbed"), slopes(tmp_path / "alone")
    assert np.array_equal(slopes(tmp_path / "disturbed"), shared)
    assert np.linalg.norm(one - shared) < 1e-4 * np.linalg.norm(shared)

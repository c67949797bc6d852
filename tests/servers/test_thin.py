"""A model's own linears tuned on a real SGLang server: adapters beside weights that are sent every so often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from noback import Full, SglangEngine, evaluate, tuned_run
from noback.directions import Rank1
from noback.training import train
from tests.servers.adapters import expected_scores
from tests.servers.conftest import SHARED, of_worlds
from tests.servers.starting import lora_flags, serving
from tests.servers.test_starting import LONG, TOLERANCE, scores
from tests.servers.test_tuning import STEPS, Killing, config, slopes

pytestmark = pytest.mark.server
LINEARS = Full(tune="*.q_proj.weight,*.v_proj.weight")  # what the servers of these tests take adapters of


def thin(served, **options):
    return replace(config(served, **options), adapter=LINEARS, noise=Rank1())


@of_worlds("sglang", "sglang-two-ranks")
def test_slopes_are_those_of_the_local_engine_and_the_server_has_its_own_weights_again(server, served, tmp_path):
    """Rank 8 is filled by the moves of seven steps, so the weights are sent at the start and once again."""
    before = scores(server, None, LONG)
    there = train(thin(served, engine=SglangEngine(url=server.url)), tmp_path / "there")
    here = train(thin(served), tmp_path / "here")
    ours, theirs = slopes(tmp_path / "there"), slopes(tmp_path / "here")
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)
    assert evaluate(tuned_run(tmp_path / "there", engine="local")[0])[0].accuracy == there.best == here.best
    assert server.log.read_text().count("POST /update_weights_from_tensor") >= 2
    assert server.get("/model_info")["weight_version"] == "default"
    torch.testing.assert_close(scores(server, None, LONG), before, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(before, expected_scores(served, None, LONG), atol=TOLERANCE, rtol=0)


def test_a_server_that_is_killed_and_started_again_is_sent_the_weights_and_the_bits_are_the_same(served, tmp_path):
    with serving("sglang", served, *lora_flags("sglang"), *SHARED["sglang"]) as first:
        wanted = thin(served, engine=SglangEngine(url=first.url))
        undisturbed = train(wanted, tmp_path / "undisturbed")
        watcher = Killing(first, STEPS // 2)
        try:
            disturbed = train(wanted, tmp_path / "disturbed", watcher=watcher)
        finally:
            watcher.server.kill()
    assert disturbed.final_weights == undisturbed.final_weights

"""`noback engine check` and `noback engine load` on real servers."""

from __future__ import annotations

import json

import pytest
import torch

from noback.cli.main import main
from tests.servers.adapters import expected_scores
from tests.servers.test_starting import LONG, TOLERANCE, scores, unload

pytestmark = pytest.mark.server


def test_the_server_is_examined_and_every_line_passes(server, capsys):
    words = ["engine", "check", server.url, "--set", "adapter.targets=q_proj,v_proj", "--batch", "4", "--json"]
    code = main(words)
    table = json.loads(capsys.readouterr().out)
    assert code == 0, [line for line in table["lines"] if not line["passed"]]
    lines = {line["name"]: line for line in table["lines"]}
    assert lines["dtype"]["figures"]["dtype"] == "float32"
    assert lines["local"]["figures"]["difference"] < 1e-2


def test_a_runs_adapter_is_put_onto_the_server_and_replaced_by_another(server, tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["--model", str(server.model), "--task", "reviews-causal", "--adapter", "lora", "--steps", "3",
             "--batch", "4", "--set", "adapter.targets=q_proj,v_proj", "--lr", "0.3", "--test-limit", "8"]  # fmt: skip
    assert main(["train", *words, "--out", run]) == 0
    for more in (["--at", "final"], ["--at", "base", "--replace"]):
        assert main(["engine", "load", run, server.url, "reviews", *more]) == 0
    assert "reviews" in [one["id"] for one in server.get("/v1/models")["data"]]
    torch.testing.assert_close(  # B is zero at the base
        scores(server, "reviews", LONG), expected_scores(server.model, None, LONG), atol=TOLERANCE, rtol=0
    )
    folder = tmp_path / "run" / "served"
    assert [len([*one.iterdir()]) for one in (folder,) if one.exists()] == ([1] if server.engine == "vllm" else [])
    unload(server, "reviews")

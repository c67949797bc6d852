"""vLLM's traps, which answer with wrong numbers and say nothing, and that its dialect is in none of them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import torch

from noback.cli.main import main
from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy
from noback.engines.servers.vllm import Vllm
from tests.servers.adapters import PROMPTS, WORDS, adapter_tensors, expected_scores
from tests.servers.recording import CONFIG
from tests.servers.starting import lora_flags, serving
from tests.servers.test_starting import LONG, scores

pytestmark = pytest.mark.server
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def server(two_heads_folder):
    with serving("vllm", two_heads_folder, *lora_flags("vllm")) as one:
        yield one


def loaded_twice(server):
    """How far the scores are off for new weights under an old name."""

    async def play():
        dialect, off = Vllm(Client(server.url)), []
        for seed in (6, 7):
            tensors = adapter_tensors(server.model, seed)
            await dialect.publish("again", Copy(CONFIG, tensors))
            replies = await dialect.score([Ask(tuple(prompt), "again", words=tuple(WORDS)) for prompt in LONG])
            await dialect.retire("again")
            found = torch.tensor([list(reply.log_probabilities) for reply in replies])
            off.append(float((found - expected_scores(server.model, tensors, LONG)).abs().max()))
        await dialect.close()
        return off

    return asyncio.run(play())


def test_new_weights_under_an_old_name_score_as_themselves(server):
    assert max(loaded_twice(server)) < TOLERANCE


def test_without_a_fresh_path_and_salt_they_would_score_as_the_old_ones(server, monkeypatch):
    """The precaution is what helps: without it the same calls give the old weights' scores."""
    same = SimpleNamespace(token_hex=lambda _: "same")
    monkeypatch.setattr("noback.engines.servers.vllm.secrets", same)
    monkeypatch.setattr("noback.engines.servers.adapter_files.secrets", same)
    first, second = loaded_twice(server)
    assert first < TOLERANCE
    assert second > 10 * TOLERANCE


def test_prompts_without_an_adapter_are_asked_apart_from_those_with_one(server):
    """On a CPU a prompt without an adapter that meets others in a batch is answered with an adapter's scores."""

    async def play():
        dialect = Vllm(Client(server.url))
        await dialect.publish("beside", Copy(CONFIG, adapter_tensors(server.model, 8)))
        names = [None, "beside"] * 8
        replies = await dialect.score([Ask(tuple(PROMPTS[0]), name, words=tuple(WORDS)) for name in names])
        await dialect.retire("beside")
        await dialect.close()
        return torch.tensor([list(reply.log_probabilities) for reply in replies[::2]])

    expected = expected_scores(server.model, None, PROMPTS[:1])
    torch.testing.assert_close(asyncio.run(play()), expected.expand(8, -1), atol=TOLERANCE, rtol=0)


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
    assert len(list((tmp_path / "run" / "served").iterdir())) == 1

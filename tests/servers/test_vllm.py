"""vLLM's traps, which answer with wrong numbers and say nothing, and that its dialect is in none of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy
from noback.engines.servers.vllm import Vllm
from tests.servers.adapters import PROMPTS, WORDS, adapter_tensors, expected_scores
from tests.servers.conftest import of_worlds
from tests.servers.recording import CONFIG
from tests.servers.test_starting import LONG

pytestmark = [pytest.mark.server, of_worlds("vllm")]
TOLERANCE = 1e-4


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

"""SGLang's dialect against what a real SGLang answered (`tests/servers/recording.py`)."""

from __future__ import annotations

import asyncio
import base64
import io
import pickle
import re

import pytest
import torch

from noback.engines.servers.checking import Needs, check
from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy, Limits, Refused
from noback.engines.servers.sglang import Sglang
from noback.errors import InputError
from tests.engines.servers.replayed import replaying
from tests.servers.adapters import PROMPTS, WORDS
from tests.servers.recording import CONFIG, all_is_well, no_adapters, what_is_refused

NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
COPY = Copy(CONFIG, {NAME: torch.arange(6.0).view(2, 3)})


def played(world, scene, *copies):
    """What a scene gives on a recorded server, and what it asked there."""

    async def play(url):
        server = Sglang(Client(url, pauses=()))
        try:
            return await scene(server, *copies)
        finally:
            await server.close()

    with replaying(world, "sglang-0.5.23") as replayed:
        return asyncio.run(play(replayed.url)), replayed.asked


def test_adapters_come_are_scored_and_go():
    (about, loaded, words, spelled, again, _, longer, left), asked = played("well", all_is_well, COPY, COPY)
    assert (about.version, about.dtype, about.ranks, about.model) == ("0.5.23", "float32", 1, "/served/model")
    assert about.lora == Limits(8, 3, frozenset({"q_proj", "v_proj"}))
    assert sorted(loaded) == ["one", "two"]
    assert left == []
    assert [len(reply.log_probabilities) for reply in words] == [len(WORDS)] * 9
    assert [reply.tokens for reply in words] == [len(prompt) for prompt in PROMPTS] * 3
    base, one = words[0].log_probabilities, words[3].log_probabilities
    assert max(abs(a - b) for a, b in zip(base, one, strict=True)) > 1e-2
    assert [len(reply.log_probabilities) for reply in spelled] == [3, 2]
    assert all(value < 0 for reply in [*words, *spelled] for value in reply.log_probabilities)
    for first, second in zip(spelled, again, strict=True):
        torch.testing.assert_close(torch.tensor(first.log_probabilities), torch.tensor(second.log_probabilities))
    assert [reply.cached for reply in longer] == [64, 64]
    requests = [body for path, body in asked if path == "/generate"]
    assert requests[0]["lora_path"] == [None] * 3 + ["one"] * 3 + ["two"] * 3
    assert requests[1]["logprob_start_len"] == [2, 2]


def test_what_is_refused_is_told_and_an_unknown_adapter_is_not_loaded():
    said, _ = played("refused", what_is_refused, COPY)
    assert len(said) == 4
    assert all(re.match(r"server http://127.0.0.1:\d+ refuses", text) for text in said)
    assert "nobody" in said[-1]


def test_a_server_without_adapters_says_so():
    (about, said), _ = played("no-lora", no_adapters, COPY)
    assert about.lora is None
    assert "--enable-lora" in said
    with pytest.raises(InputError, match="takes no adapters; start it with --enable-lora"):
        check(Sglang(Client("http://server:1")), about, Needs(COPY, 2, frozenset({"q_proj"}), 2, 8, (3, 4), (5,)))


def test_each_rank_is_sent_a_payload_of_plain_tensors():
    class Ranks(Client):
        async def _asked(self, method, path, body, **_options):
            self.body = body
            return {"version": "0.5.23", "tp_size": 2, "enable_lora": True}

    async def publish(server):
        await server.about()
        await server.publish("one", COPY)

    client = Ranks("http://server:1")
    asyncio.run(publish(Sglang(client)))
    payloads = client.body["serialized_named_tensors"]
    assert len(payloads) == 2
    held = pickle.Unpickler(io.BytesIO(base64.b64decode(payloads[1]))).load()  # as the server would; ours never does
    assert torch.equal(held[NAME], COPY.tensors[NAME])


def test_requests_that_are_to_be_apart_have_cache_keys_of_their_own():
    class Keys(Client):
        async def _asked(self, method, path, body, **_options):
            keys.append(body.get("extra_key"))
            return []

    keys = []
    for apart in (False, True, True):
        asyncio.run(Sglang(Keys("http://server:1")).score([], apart=apart))
    assert keys[0] is None
    assert None not in keys[1:]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("told", [{}, [{}], [{"meta_info": {}}], None])
def test_an_answer_of_another_form_is_refused(told):
    class Odd(Client):
        async def _asked(self, *_args, **_options):
            return told

    with pytest.raises(Refused, match="in a form that noback does not know"):
        asyncio.run(Sglang(Odd("http://server:1")).score([Ask((1, 2), None, words=(3,))]))


def test_scores_of_other_tokens_than_were_asked_for_are_refused():
    class Odd(Client):
        async def _asked(self, *_args, **_options):
            found = {"output_token_ids_logprobs": [[[-1.0, 4, None]]], "prompt_tokens": 2, "cached_tokens": 0}
            return [{"meta_info": found}]

    with pytest.raises(Refused, match="asked for"):
        asyncio.run(Sglang(Odd("http://server:1")).score([Ask((1, 2), None, words=(3,))]))

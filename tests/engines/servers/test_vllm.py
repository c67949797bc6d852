"""vLLM's dialect, against what a real vLLM 0.32 on a CPU was recorded to answer (tests/servers/recording.py)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from noback.engines.servers.adapter_files import AdapterFiles
from noback.engines.servers.client import Client
from noback.engines.servers.precision import precision_of
from noback.engines.servers.server import Ask, Away, Copy, NotLoaded, Refused
from noback.engines.servers.vllm import MOST_WORDS, Vllm, served_rank
from noback.errors import InputError
from tests.engines.servers.replayed import replaying
from tests.servers.adapters import PROMPTS, WORDS, adapter_tensors, expected_scores, save_two_heads
from tests.servers.recording import CONFIG, all_is_well, no_adapters, what_is_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    return save_two_heads(tmp_path_factory.mktemp("served") / "model", tokenizer)


@pytest.fixture(scope="module")
def copies(folder):
    return [Copy(CONFIG, adapter_tensors(folder, seed)) for seed in (1, 2)]


def played(world, scene, *copies, **options):
    """What a scene gives on a recorded server, and what it asked there."""

    async def play(url):
        server = Vllm(Client(url, pauses=()), **options)
        try:
            return await scene(server, *copies)
        finally:
            await server.close()

    with replaying(world) as replayed:
        return asyncio.run(play(replayed.url)), replayed.asked


@pytest.fixture(scope="module")
def well(copies):
    return played("well", all_is_well, *copies)


def test_it_says_its_version_model_slots_and_by_its_scores_its_type(well):
    about = well[0][0]
    assert (about.kind, about.version, about.model) == ("vllm", "0.32.0", "/served/model")
    assert (about.dtype, about.context, about.lora.slots, about.replicas) == ("float32", 512, 2, 1)


def test_prompts_of_any_mix_of_adapters_score_as_transformers_does(well, folder, copies):
    found = torch.tensor([list(reply.log_probabilities) for reply in well[0][2]])
    tensors = [None, *(copy.tensors for copy in copies)]
    torch.testing.assert_close(found, torch.cat([expected_scores(folder, one) for one in tensors]), atol=1e-4, rtol=0)


def test_each_token_of_a_continuation_scores_as_transformers_does(well, folder, copies):
    replies = well[0][3]
    assert [len(reply.log_probabilities) for reply in replies] == [3, 2]
    expected = expected_scores(folder, copies[0].tensors, [[5, 6, 7, 8], [5, 6, 7, 8, 20]])
    assert replies[0].log_probabilities[1] == pytest.approx(float(expected[0][WORDS.index(20)]), abs=1e-4)
    assert replies[0].log_probabilities[2] == pytest.approx(float(expected[1][WORDS.index(30)]), abs=1e-4)


def test_what_the_prefix_cache_gave_is_counted_over_all_prompts(well):
    first, again = ([reply.cached for reply in replies] for replies in well[0][5:7])
    assert sum(first) == 64  # the second prompt of the two has the first one's two blocks
    assert sum(again) == 128


def test_adapters_come_and_go(well):
    assert well[0][1] == ["one", "two"]
    assert well[0][-1] == []


def test_no_request_for_the_model_alone_is_in_the_air_with_one_of_an_adapter(well):
    """On a CPU, vLLM 0.32 answers such a prompt with an adapter of the others'."""
    asked = [body["model"] for path, body in well[1] if path == "/v1/completions" and body["prompt"] == PROMPTS]
    assert asked[0] == "/served/model"
    assert sorted(asked[1:]) == ["one", "two"]


def test_the_same_name_never_has_the_same_path_or_salt(copies):
    async def twice(server, copy):
        for _ in range(2):
            await server.publish("one", copy)
            await server.score([Ask(tuple(prompt), "one", words=tuple(WORDS)) for prompt in PROMPTS])
            await server.retire("one")

    asked = played("well", twice, copies[0])[1]
    paths = [body["lora_path"] for path, body in asked if path == "/v1/load_lora_adapter"]
    salts = [body["cache_salt"] for path, body in asked if path == "/v1/completions"]
    assert len(set(paths)) == len(set(salts)) == 2
    assert not any(Path(path).exists() for path in paths)


def test_requests_that_are_to_be_apart_have_salts_of_their_own(copies):
    async def twice(server, copy):
        await server.publish("one", copy)
        for _ in range(2):
            await server.score([Ask(tuple(prompt), "one", words=tuple(WORDS)) for prompt in PROMPTS], apart=True)

    asked = played("well", twice, copies[0])[1]
    salts = [body["cache_salt"] for path, body in asked if path == "/v1/completions"]
    assert len(set(salts)) == len(salts) == 2


def test_more_tokens_than_a_request_may_ask_for_go_in_several():
    words = tuple(range(MOST_WORDS + 5))

    def reply(ids):
        table = {f"token_id:{word}": -1.0 - word for word in ids}
        return {"choices": [{"index": 0, "logprobs": {"top_logprobs": [table]}}]}

    exchanges = [exchange("GET", "/v1/models", None, {"data": [{"id": "m"}]}), exchange("GET", "/metrics", None, "")]
    exchanges += [exchange("POST", "/v1/completions", question(ids), reply(ids)) for ids in (words[:128], words[128:])]
    found, _ = played(exchanges, lambda server: server.score([Ask((5, 6), None, words=words)]))
    assert found[0].log_probabilities == [-1.0 - word for word in words]


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ("no-lora", "takes no adapters; start it with --enable-lora"),
        ("no-loading", "while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"),
    ],
)
def test_a_server_that_takes_no_adapters_is_refused_with_what_turns_them_on(world, sentence, copies):
    (about, said), _ = played(world, no_adapters, copies[0])
    assert (about.lora is None) == (world == "no-lora")
    assert said.endswith(sentence)


def test_refusals_name_the_flag_that_would_change_them(copies):
    (larger, odd, again, nobody), _ = played("refused", what_is_refused, copies[0])
    assert "takes adapters up to rank 8 and the run's has rank 16; start it with --max-lora-rank 16" in larger
    assert "q_proj" in odd
    assert "--set adapter.targets" in odd
    assert "already been loaded" in again
    assert "does not exist" in nobody


def test_a_folder_that_the_server_does_not_see_is_named(copies):
    said = "Loading lora one failed: No adapter found for /served/adapter"
    body = {"lora_name": "one", "lora_path": "/served/adapter"}
    missing = [exchange("POST", "/v1/load_lora_adapter", body, {"error": {"message": said}}, status=404)]
    with pytest.raises(Refused, match=r"does not see the folder .*--folder DIR"):
        played(missing, lambda server: server.publish("one", copies[0]))


@pytest.mark.parametrize(
    ("status", "reply", "kind"),
    [
        (500, {"error": {"message": "EngineCore encountered an issue. See stack trace"}}, Away),
        (404, {"error": {"message": "The model `one` does not exist."}}, NotLoaded),
        (200, {"choices": []}, Refused),
        (200, {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:9": -1.0}]}}]}, Refused),
        (200, {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:7": 2.0}]}}]}, Refused),
    ],
)
def test_a_wrong_answer_is_known_for_what_it_is(status, reply, kind):
    exchanges = [
        exchange("GET", "/v1/models", None, {"data": [{"id": "m"}]}),
        exchange("POST", "/v1/completions", question((7,), "one"), reply, status=status),
    ]
    with pytest.raises(kind):
        played(exchanges, lambda server: server.score([Ask((5, 6), "one", words=(7,))]))


def test_what_killed_processes_left_goes_and_a_living_one_keeps_its_own(tmp_path, monkeypatch, copies):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, kept = tmp_path / f"noback-adapters-{ended.pid}-x", tmp_path / f"noback-adapters-{os.getpid()}-y"
    for folder in (left, kept):
        folder.mkdir()
    files = AdapterFiles()
    path = files.write("one", copies[0])
    assert (path / "adapter_model.safetensors").exists()
    assert json.loads((path / "adapter_config.json").read_text()) == CONFIG
    files.close()
    assert list(tmp_path.iterdir()) == [kept]


def test_a_folder_of_ones_own_must_be_there_and_stays(tmp_path, copies):
    with pytest.raises(InputError, match="does not exist"):
        AdapterFiles(tmp_path / "none").write("one", copies[0])
    files = AdapterFiles(tmp_path)
    files.write("one", copies[0])
    files.close()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_type_of_logits_shows_in_their_log_probabilities(dtype):
    generator = torch.Generator().manual_seed(0)
    for size in (0.7, 3.0, 12.0):
        logits = (size * torch.randn(4, 2000, generator=generator)).to(dtype).float()
        scores = logits.log_softmax(-1)[:, :MOST_WORDS]
        assert precision_of(scores.tolist()) == str(dtype).removeprefix("torch.")


def test_a_rank_that_the_flag_does_not_know_becomes_the_next_that_it_does():
    assert [served_rank(rank) for rank in (1, 2, 8, 9, 100, 512)] == [1, 8, 8, 16, 128, 512]


def exchange(method, path, body, reply, status=200):
    text = reply if isinstance(reply, str) else json.dumps(reply)
    return {"method": method, "path": path, "body": body, "status": status, "reply": text}


def question(words, model="m"):
    return {"model": model, "prompt": [[5, 6]], "max_tokens": 1, "temperature": 0, "logprobs": 1,
            "logprob_token_ids": list(words), "return_tokens_as_token_ids": True}  # fmt: skip

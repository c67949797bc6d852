"""The engines themselves, without noback: they start on a CPU, take adapters, and score as transformers does."""

from __future__ import annotations

import pytest
import torch

from tests.servers.adapters import PROMPTS, WORDS, adapter_tensors, expected_scores, write_adapter
from tests.servers.starting import SHARED_MEMORY, Server, lora_flags, serving

pytestmark = pytest.mark.server
TOLERANCE = 1e-4  # most that a server's log-probability may differ from transformers'
LONG = [[*range(100, 180)], [*range(300, 371)]]  # longer than a block of the cache, 32 tokens on vLLM


def scores(
    server: Server, adapter: str | None, prompts: list[list[int]] = PROMPTS, salt: str | None = None
) -> torch.Tensor:
    """Label words' log-probabilities by a plain request: [prompts, words]."""
    if server.engine == "sglang":
        body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True,
                "token_ids_logprob": [WORDS] * len(prompts), "lora_path": [adapter] * len(prompts)}  # fmt: skip
        status, replies = server.post("/generate", body)
        assert status == 200, replies
        return torch.tensor([[row[0] for row in one["meta_info"]["output_token_ids_logprobs"][0]] for one in replies])
    body = {"model": adapter or str(server.model), "prompt": prompts, "max_tokens": 1, "temperature": 0,
            "logprobs": len(WORDS), "logprob_token_ids": WORDS, "return_tokens_as_token_ids": True}  # fmt: skip
    status, reply = server.post("/v1/completions", body | ({"cache_salt": salt} if salt else {}))
    assert status == 200, reply
    tables = [choice["logprobs"]["top_logprobs"][0] for choice in reply["choices"]]
    return torch.tensor([[table[f"token_id:{word}"] for word in WORDS] for table in tables])


def load(server: Server, name: str, folder) -> None:
    path = "/load_lora_adapter" if server.engine == "sglang" else "/v1/load_lora_adapter"
    status, reply = server.post(path, {"lora_name": name, "lora_path": str(folder)})
    assert status == 200, reply


def unload(server: Server, name: str) -> None:
    path = "/unload_lora_adapter" if server.engine == "sglang" else "/v1/unload_lora_adapter"
    status, reply = server.post(path, {"lora_name": name})
    assert status == 200, reply


def test_the_base_model_and_an_adapter_score_as_transformers_does(server, tmp_path):
    tensors = adapter_tensors(server.model, 1)
    load(server, "one", write_adapter(tmp_path / "one", tensors))
    base, tuned = expected_scores(server.model, None), expected_scores(server.model, tensors)
    assert (base - tuned).abs().max() > 10 * TOLERANCE
    torch.testing.assert_close(scores(server, None), base, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(scores(server, "one"), tuned, atol=TOLERANCE, rtol=0)
    unload(server, "one")


def test_a_fresh_name_and_path_with_a_salt_give_the_new_weights_scores(server, tmp_path):
    for seed in (4, 5):
        tensors = adapter_tensors(server.model, seed)
        load(server, f"fresh-{seed}", write_adapter(tmp_path / f"fresh-{seed}", tensors))
        found = scores(server, f"fresh-{seed}", LONG, salt=f"salt-{seed}")
        torch.testing.assert_close(found, expected_scores(server.model, tensors, LONG), atol=TOLERANCE, rtol=0)
        unload(server, f"fresh-{seed}")


def test_new_weights_under_an_old_name_and_path_are_a_trap_on_vllm_only(server, tmp_path):
    """Why a client takes a fresh name and path for each load: vLLM keeps keys and values by (name, path)."""
    tensors = {seed: adapter_tensors(server.model, seed) for seed in (2, 3)}
    seen = []
    for seed in (2, 3):
        load(server, "same", write_adapter(tmp_path / "same", tensors[seed]))
        seen.append(scores(server, "same", LONG))
        unload(server, "same")
    wanted = [expected_scores(server.model, tensors[seed], LONG) for seed in (2, 3)]
    torch.testing.assert_close(seen[0], wanted[0], atol=TOLERANCE, rtol=0)
    is_stale = bool((seen[1] - wanted[1]).abs().max() > 10 * TOLERANCE)
    assert is_stale == (server.engine == "vllm")


@pytest.mark.parametrize("engine", ["sglang"])
def test_a_killed_server_leaves_no_queues_in_shared_memory_and_starts_again_at_the_same_address(engine, served):
    with serving(engine, served, *lora_flags(engine)) as first:
        before = scores(first, None)
        first.kill()
        assert not [*SHARED_MEMORY.glob("sglang_loads_*"), *SHARED_MEMORY.glob("sgl_shm_mq_*")]
        second = first.again()
        try:
            assert second.wait().url == first.url
            assert torch.equal(scores(second, None), before)
        finally:
            second.kill()

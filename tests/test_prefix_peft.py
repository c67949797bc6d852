"""A prefix in PEFT's own format: the same answers in plain PEFT, or no file."""

import peft
import pytest
import torch
import transformers

from noback.adapters import Prefix
from noback.adapters.prefix_peft import _write
from noback.values import Move, Term
from noback.weights import Weights
from tests.conftest import tiny_model

SIZES = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
BODY = {**SIZES, **ENDS, "intermediate_size": 48}
GROUPED = {**BODY, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
T = transformers
HELD = {
    "llama": lambda: T.LlamaConfig(**GROUPED),
    "llama with scaled rotations": lambda: T.LlamaConfig(**GROUPED, rope_parameters=YARN, max_position_embeddings=256),
    "qwen3, wide heads": lambda: T.Qwen3Config(**GROUPED, head_dim=16),
    "gpt-neox, half rotated": lambda: T.GPTNeoXConfig(**BODY, rotary_pct=0.5),
}
NOT_HELD = {
    "gpt2, learned positions": lambda: T.GPT2Config(vocab_size=120, n_embd=32, n_layer=4, n_head=4, **ENDS),
    "opt, learned positions": lambda: T.OPTConfig(**SIZES, **ENDS, ffn_dim=48, word_embed_proj_dim=32),
    "mistral, a window": lambda: T.MistralConfig(**GROUPED, sliding_window=64),
    "llama, rotations of the length": lambda: T.LlamaConfig(**GROUPED, rope_parameters=DYNAMIC),
    "cohere, other pairs rotated": lambda: T.CohereConfig(**GROUPED),
    "smollm3, a layer without rotation": lambda: T.SmolLM3Config(**GROUPED),
}


def with_prefix(config, dtype=torch.float32):
    """A random causal LM, its twin, and the former with a prefix that was tuned a little."""
    torch.manual_seed(1)
    model, twin = (T.AutoModelForCausalLM.from_config(config, dtype=dtype).eval() for _ in range(2))
    for tensor in model.parameters():
        if tensor.dim() > 1:
            tensor.data.mul_(3)  # attention of a fresh model is all but even, and would not tell keys apart
    twin.load_state_dict(model.state_dict())
    Weights(Prefix(tokens=5).attach(model, (), 0)).advance([Move((Term(3, 0.5),))])
    return model, twin


@torch.no_grad()
def logits(model):
    """Of two texts, the second padded on the left."""
    torch.manual_seed(2)
    ids, mask = torch.randint(0, 120, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[1, :4] = 0
    return model(input_ids=ids, attention_mask=mask).logits[mask.bool()]


def files(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", HELD)
def test_plain_peft_gives_the_answers_of_a_prefix_over_rotary_positions(name, tmp_path):
    model, plain = with_prefix(HELD[name]())
    ours, without = logits(model), logits(plain)
    Prefix(tokens=5).save(model, str(tmp_path))
    assert {"adapter_config.json", "adapter_model.safetensors", "prefix.safetensors"} <= files(tmp_path)
    theirs = logits(peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval())
    assert (ours - without).abs().max() > 0.1  # the prefix does something
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(model), ours)  # and saving leaves the model as it is


def test_a_bfloat16_prefix_is_held_too(tmp_path):
    model, plain = with_prefix(HELD["llama"](), torch.bfloat16)
    Prefix(tokens=5).save(model, str(tmp_path))
    theirs = logits(peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval())
    torch.testing.assert_close(theirs, logits(model), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("name", NOT_HELD)
def test_nothing_is_written_for_peft_where_it_would_answer_otherwise(name, tmp_path):
    model, _ = with_prefix(NOT_HELD[name]())
    Prefix(tokens=5).save(model, str(tmp_path))
    assert files(tmp_path) == {"prefix.safetensors", "prefix.json"}


@pytest.mark.parametrize("name", ["gpt2, learned positions", "opt, learned positions"])
def test_with_learned_positions_peft_answers_otherwise(name, tmp_path):
    """Why there is no file: the very same keys and values, and the tokens stand elsewhere."""
    model, plain = with_prefix(NOT_HELD[name]())
    modules = [module for module in model.modules() if hasattr(module, "prefix_keys")]
    _write(model, [(module.prefix_keys, module.prefix_values) for module in modules], tmp_path)
    theirs = logits(peft.PeftModel.from_pretrained(plain, str(tmp_path)).eval())
    assert (theirs - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_a_masked_model_takes_no_past(kind, tmp_path):
    model = tiny_model(kind)
    Prefix(tokens=3).attach(model, (), 0)
    Prefix(tokens=3).save(model, str(tmp_path))
    assert files(tmp_path) == {"prefix.safetensors", "prefix.json"}

"""The model that test servers serve."""

from __future__ import annotations

import pytest
import torch
import transformers


@pytest.fixture(scope="session")
def two_heads_folder(tmp_path_factory, tokenizer):
    """A tiny Llama that two ranks can share: two key-value heads of 32, as the servers' attention wants them."""
    folder = tmp_path_factory.mktemp("served") / "model"
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=16384, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=32, intermediate_size=64, max_position_embeddings=512, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

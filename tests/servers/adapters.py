"""Adapters that are not noback's, and the scores that they must give: transformers with the adapter merged."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

RANK = 8
PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [5, 6, 7, 99]]
WORDS = [20, 30, 40]


def save_two_heads(folder: Path, tokenizer) -> Path:
    """A tiny Llama that two ranks can share: two key-value heads of 32, as the servers' attention wants them."""
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=16384, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=32, intermediate_size=64, max_position_embeddings=512, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapter_tensors(model: Path, seed: int, size: float = 0.3) -> dict[str, torch.Tensor]:
    """A random adapter of rank 8 on q and v, by PEFT's names."""
    generator = torch.Generator().manual_seed(seed)
    opened = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tensors = {}
    for name, module in opened.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            rows, columns = module.weight.shape
            for side, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                tensors[f"base_model.model.{name}.lora_{side}.weight"] = size * torch.randn(shape, generator=generator)
    return tensors


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The adapter as a PEFT folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"],
              "task_type": "CAUSAL_LM", "bias": "none", "lora_dropout": 0.0}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@torch.inference_mode()
def expected_scores(
    model: Path, tensors: dict[str, torch.Tensor] | None, prompts: list[list[int]] = PROMPTS
) -> torch.Tensor:
    """The label words' log-probabilities after each prompt: [prompts, words]."""
    opened = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for name, module in opened.named_modules():
        key = f"base_model.model.{name}.lora_"
        if tensors is not None and f"{key}A.weight" in tensors:
            module.weight += tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"]
    logits = [opened(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)[WORDS] for prompt in prompts]
    return torch.stack(logits)

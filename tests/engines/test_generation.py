"""Greedy generation: batched as by itself, stopped where asked."""

import pytest
import torch

from noback.engines import generate, open_model
from tests.conftest import tiny_causal

TEXTS = ["This film was", "I", "The best thing about the story is that the actors", "A long time ago there was"]


@pytest.fixture(scope="module")
def opened():
    return open_model("mini-causal", "float32", causal=True)


def prompts_of(tokenizer):
    return [[0, *tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]


def test_a_batch_is_answered_as_each_prompt_by_itself(opened):
    prompts = prompts_of(opened.tokenizer)
    many = generate(opened.model, opened.tokenizer, prompts, 20)
    assert many == [generate(opened.model, opened.tokenizer, [prompt], 20)[0] for prompt in prompts]
    assert len(set(many)) == len(many)


@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2", "falcon", "mixtral", "gemma"])
def test_left_padding_changes_no_token_of_any_architecture(kind, tokenizer):
    model, prompts = tiny_causal(kind), prompts_of(tokenizer)
    many = generate(model, tokenizer, prompts, 6)
    assert many == [generate(model, tokenizer, [prompt], 6)[0] for prompt in prompts]


def test_what_is_written_is_the_likeliest_token_each_time(opened):
    model, tokenizer, *_ = opened
    ids = prompts_of(tokenizer)[0]
    expected = list(ids)
    with torch.inference_mode():
        for _ in range(5):
            expected.append(int(model(input_ids=torch.tensor([expected])).logits[0, -1].argmax()))
    assert generate(model, tokenizer, [ids], 5) == [tokenizer.decode(expected[len(ids) :]).strip()]


def test_a_text_ends_before_a_stop_string(opened):
    model, tokenizer, *_ = opened
    (whole,) = generate(model, tokenizer, prompts_of(tokenizer)[1:2], 20)
    word = whole.split()[3]
    (cut,) = generate(model, tokenizer, prompts_of(tokenizer)[1:2], 20, [word])
    assert cut == whole[: whole.index(word)].strip()


def test_generation_goes_no_further_once_every_text_is_stopped(opened):
    model, tokenizer, *_ = opened
    seen = []
    hook = model.lm_head.register_forward_hook(lambda *_: seen.append(1))
    generate(model, tokenizer, prompts_of(tokenizer)[1:2], 20, ["a"])
    hook.remove()
    assert len(seen) < 20


def test_a_lower_limit_writes_less_of_the_same(opened):
    model, tokenizer, *_ = opened
    more, less = (generate(model, tokenizer, prompts_of(tokenizer), limit) for limit in (6, 3))
    for long, short in zip(more, less, strict=True):
        assert long.startswith(short)
        assert len(short) < len(long)

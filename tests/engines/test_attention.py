"""Another attention for a model: full masks, and a kernel for short rows, here with a stand-in for the GPU's."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from noback.engines import Local, Reference, local
from noback.engines.attention import overridden, own_attention
from noback.engines.cuda.attention import short_rows
from noback.engines.runner import Runner
from noback.engines.trust import Trust
from tests.conftest import tiny_causal, tiny_model, weights_of
from tests.engines.test_causal import BATCHES, POINTS


def opened(kind):
    model = tiny_model(kind) if kind in ("roberta", "bert") else tiny_causal(kind)
    model.set_attn_implementation("sdpa")
    return model


class Masks(TorchFunctionMode):
    """While active, notes the masks that torch's attention is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.seen.append(kwargs.get("attn_mask"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["roberta", "bert", "llama", "opt", "qwen2", "gemma", "phi", "mistral"])
@pytest.mark.parametrize("padded", [False, True])
def test_full_masks_are_there_where_the_library_leaves_them_out_and_change_no_answer(kind, padded):
    """A captured forward cannot look whether a mask hides anything, and a plain one is to give its bits."""
    model, ids = opened(kind), torch.arange(24).view(2, 12) + 5
    seen = torch.ones_like(ids)
    seen[0, 9:] = 0 if padded else 1
    found, given = [], []
    for full in (False, True):
        with torch.inference_mode(), Masks() as masks:
            if full:
                with overridden(model, own_attention(model).function, full_masks=True):
                    found.append(model(input_ids=ids, attention_mask=seen).logits)
            else:
                found.append(model(input_ids=ids, attention_mask=seen).logits)
        given.append(masks.seen)
    assert len(given[1]) == 2
    assert all(mask.dtype == torch.float32 and mask.shape[-2:] == (12, 12) for mask in given[1])
    if not padded and kind != "mistral":  # whose window hides something
        assert given[0] == [None, None]
    torch.testing.assert_close(found[0][seen.bool()], found[1][seen.bool()], atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == "sdpa"


class Kernel:
    """Stands in for the kernel of a GPU; `error` is added to what it gives."""

    def __init__(self, longest=64, error=0.0):
        self.longest, self.error, self.ran = longest, error, 0

    def can_attend(self, query, key, value, mask):
        return query.shape == key.shape == value.shape and query.shape[2] <= self.longest

    def attention(self, query, key, value, mask, *, scale, causal):
        self.ran += 1
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, is_causal=causal)
        return found.transpose(1, 2).contiguous().transpose(1, 2) + self.error


@pytest.fixture
def with_kernel(monkeypatch):
    """An engine as on a GPU whose attention goes to a kernel, and what it says."""

    def made(model, word_ids, kernel):
        runner = replace(Runner(), attention=lambda own, trust: short_rows(own.function, trust, kernel))
        monkeypatch.setattr(local, "runner_for", lambda *_, **__: runner)
        said = []
        return Local(model, weights_of(model), word_ids, share="none", say=said.append), said

    return made


@pytest.mark.parametrize("kind", ["roberta", "llama", "opt", "mistral"])
def test_short_rows_go_to_the_kernel(kind, with_kernel, small_task, tokenizer):
    """Those of all layers but the last, which computes queries for few tokens only; with groups of heads, too."""
    model, kernel = opened(kind), Kernel()
    batch, word_ids = BATCHES["words"](tokenizer) if kind != "roberta" else (small_task.batch(0, 5, 0), None)
    word_ids = word_ids or small_task.word_ids
    engine, said = with_kernel(model, word_ids, kernel)
    engine.score(batch, POINTS)
    kernel.ran = 0
    found = engine.score(batch, POINTS)
    assert kernel.ran == 1  # of two layers
    assert said == []
    for ours, twins in zip(found, Reference(model, weights_of(model), word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_long_rows_and_a_kernel_that_errs_are_left_to_torch(with_kernel, tokenizer):
    batch, word_ids = BATCHES["words"](tokenizer)
    for kernel, tells in ((Kernel(longest=4), []), (Kernel(error=1.0), ["attention over short rows is computed by"])):
        model = opened("llama")
        engine, said = with_kernel(model, word_ids, kernel)
        for _ in range(2):
            found = engine.score(batch, POINTS)
        assert kernel.ran == len(tells)
        assert [text[: len(tell)] for text, tell in zip(said, tells, strict=True)] == tells
        for ours, twins in zip(found, Reference(model, weights_of(model), word_ids).score(batch, POINTS), strict=True):
            torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_what_the_kernel_does_not_know_is_left_to_torch():
    query, kernel, model = torch.randn(2, 2, 5, 8), Kernel(), opened("roberta")
    attend = short_rows(own_attention(model).function, Trust(print), kernel)
    module = model.roberta.encoder.layer[0].attention.self
    attend(module, query, query, query, None, scaling=None, is_causal=False)
    assert kernel.ran == 2  # compared, then taken
    attend(module, query, query, query, None, position_bias=torch.zeros(1, 2, 5, 5))
    attend(module, query, query, query, None, dropout=0.5)
    assert kernel.ran == 2


def test_a_name_that_the_library_no_longer_has_is_an_error_that_says_so(monkeypatch):
    from transformers import masking_utils

    monkeypatch.delattr(masking_utils, "sdpa_mask")
    with pytest.raises(ImportError, match=r"transformers has no .* must learn how this version takes an attention"):
        own_attention(tiny_causal("llama"))

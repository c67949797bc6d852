"""Masks that are made additive once, and made at all where a captured forward makes them."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from noback.engines.attending import Attending, masked_as_captured
from tests.conftest import tiny_causal, tiny_model


def attended(*masks, dtype=torch.float32):
    torch.manual_seed(0)
    query = torch.randn(2, 3, 8, 16, dtype=dtype)
    return [F.scaled_dot_product_attention(query, query, query, attn_mask=mask) for mask in masks]


def test_attention_is_what_it_is_without_and_a_mask_is_made_once():
    mask = torch.rand(2, 1, 8, 8) > 0.4
    mask[..., 0] = True
    other, window = mask.flip(-1), mask[:, :, :1].expand(-1, -1, 8, -1)
    given = (mask, mask, other, window, None, mask)
    with Attending() as masks:
        found = attended(*given)
    assert all(torch.equal(*pair) for pair in zip(found, attended(*given), strict=True))
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[4])
    assert len(masks._made) == 3


def test_a_model_that_makes_a_mask_in_every_layer_does_not_pile_them_up():
    masks = [torch.rand(2, 1, 8, 8) > place / 20 for place in range(12)]
    for mask in masks:
        mask[..., 0] = True
    with Attending() as made:
        found = attended(*masks, masks[0])
    assert len(made._made) == 4
    assert all(torch.equal(*pair) for pair in zip(found, attended(*masks, masks[0]), strict=True))


def test_a_mask_is_made_for_each_dtype_and_an_additive_one_is_left():
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    added = torch.zeros(8, 8).masked_fill(~mask, -1.0)
    with Attending() as masks:
        found = [*attended(mask), *attended(mask, dtype=torch.bfloat16), *attended(added)]
    assert len(masks._made) == 2
    expected = [*attended(mask), *attended(mask, dtype=torch.bfloat16), *attended(added)]
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


class Masks(TorchFunctionMode):
    """While active, notes the masks that attention is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.seen.append(kwargs.get("attn_mask"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["roberta", "bert", "llama", "opt", "qwen2", "gemma", "phi"])
def test_rows_without_padding_have_a_mask_where_a_captured_forward_has_one(kind):
    model = tiny_model(kind) if kind in ("roberta", "bert") else tiny_causal(kind)
    model.set_attn_implementation("sdpa")
    ids = torch.arange(24).view(2, 12) + 5
    found = []
    for context in (masked_as_captured(), None):
        with torch.inference_mode(), Masks() as masks:
            if context is None:
                found.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)
            else:
                with context:
                    found.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)
        assert len(masks.seen) == 2
        assert all((mask is None) is (context is None) for mask in masks.seen)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)

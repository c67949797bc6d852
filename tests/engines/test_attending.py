"""Masks that are made additive once."""

import torch
import torch.nn.functional as F

from noback.engines.attending import Attending


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

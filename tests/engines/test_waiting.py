"""Values that wait for their use, here on a CPU: whatever touches them finds what it would have found."""

import copy
import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from noback.engines.attending import Attending
from noback.engines.waiting import Deferring, Product, Waiting, settled, sum_of, unscaled


def tensors(*shape, count=2):
    made = torch.Generator().manual_seed(len(shape))
    return [torch.randn(*shape, generator=made) for _ in range(count)]


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t * 3,
        lambda t: t.view(-1, 4).sum(0),
        lambda t: t.reshape(2, 12).view(4, 6) @ torch.ones(6),
        lambda t: t.transpose(0, 1).exp(),
        lambda t: t[0],
        lambda t: torch.cat([t, t]),
        lambda t: torch.stack((t, t))[1],
        lambda t: t.clone(),
        lambda t: F.linear(t, torch.ones(3, 4)),
        F.relu,
        lambda t: t.expand(2, 2, 3, 4),
        lambda t: torch.tensor(t.tolist()),
        lambda t: torch.tensor(t.numpy()),
        copy.deepcopy,
        lambda t: t.contiguous(),
        lambda t: t.float(),
        lambda t: t.to(torch.bfloat16),
        lambda t: F.dropout(t, 0.5, training=False),
    ],
)
@pytest.mark.parametrize("inference", [True, False])
def test_whatever_uses_a_waiting_tensor_finds_its_values(use, inference):
    one, other = tensors(2, 3, 4)
    sums, halves, product = one + other, one * 0.5, one * other
    with torch.inference_mode(inference), Deferring() as deferring:
        made = deferring.wait(Product(lambda relu=False: product.relu() if relu else product, one.shape, one, bool))
        found = [(one + other, sums), (one * 0.5, halves), (made, product)]
        for waiting, values in found:
            assert isinstance(waiting, Waiting)
            assert waiting.shape == values.shape
            assert waiting.stride() == values.stride()
            assert waiting.dtype == values.dtype
            assert waiting.device == values.device
            assert len(waiting) == len(values)
            assert torch.equal(settled(use(waiting)), use(values))
            assert torch.equal(settled(use(waiting)), use(values))  # a second time


def test_only_sums_of_like_tensors_and_exact_multiples_wait():
    one, other = tensors(2, 3, 4)
    with Deferring():
        for plain in (one + 1, one + other[0], one + other.to(torch.bfloat16), one * 3.0, one * 2, one * other):
            assert not isinstance(plain, Waiting)
        for plain in (one * 0.0, one * -0.5, one.transpose(0, 1) + other.transpose(0, 1), one[0, 0] + other[0, 0]):
            assert not isinstance(plain, Waiting)
        for waiting in (one + other, torch.add(one, other), one.add(other), 0.25 * one, one.mul(2.0)):
            assert isinstance(waiting, Waiting)
        for plain in (one.transpose(0, 1) * 0.5, one[:, :, :1].expand(2, 3, 4) * 0.5, one.to_sparse() * 0.5):
            assert not isinstance(plain, Waiting)
        for part in (one[..., :2], one[:, 1:], one[:1].transpose(0, 1)):
            scaled = part * 0.5
            assert isinstance(scaled, Waiting)
            assert scaled.is_contiguous()
            assert settled(scaled).is_contiguous()
    assert not isinstance(one + other, Waiting)


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.zero_(),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t.__iadd__(1),
        lambda t: t.view(-1).mul_(3),
        lambda t: torch.exp(t, out=t),
        lambda t: F.relu(t, inplace=True),
        lambda t: F.relu(t, True),
        lambda t: nn.init.constant_(t, 2.0),
        lambda t: torch.ops.aten.mul_(t, 3.0),
        lambda t: t.numpy().fill(3.0),
        lambda t: ctypes.memset(t.data_ptr(), 0, t.nbytes),  # as a kernel that is launched with an address
    ],
)
def test_what_values_are_made_of_may_be_written_to_afterwards(write):
    one, other = tensors(2, 3, 4)
    total, half = one + other, one * 0.5
    with torch.inference_mode(), Deferring():
        waiting, scaled = one + other, one * 0.5
        write(one)
        assert torch.equal(settled(waiting), total)
        assert torch.equal(settled(scaled), half)


def test_what_is_written_to_a_waiting_tensor_is_seen_through_its_views():
    one, other = tensors(2, 3, 4)
    with torch.inference_mode(), Deferring():
        total = one + other
        view = total.view(6, 4)
        view += 1
        assert torch.equal(settled(total), (one + other).clone() + 1)
        assert torch.equal(settled(view.view(2, 3, 4)), settled(total))


@pytest.mark.parametrize("change", [lambda t: t.unsqueeze_(0), lambda t: t.transpose_(0, 1), lambda t: t.squeeze_(2)])
def test_a_waiting_tensor_is_not_given_another_shape_in_place(change):
    one, other = tensors(3, 3, 1)
    with torch.inference_mode(), Deferring():
        waiting = one + other
        with pytest.raises(NotImplementedError, match="another shape"):
            change(waiting)


def test_a_sum_is_known_by_its_parts_until_it_is_made():
    one, other = tensors(2, 3, 4)
    with torch.inference_mode(), Deferring():
        told = []
        waiting = (one + other).view(6, 4)
        total = sum_of(waiting)
        total.tell(lambda: told.append(1))
        assert all(torch.equal(*pair) for pair in zip(waiting.parts(), (one.view(6, 4), other.view(6, 4)), strict=True))
        assert not told
        settled(waiting)
        assert told == [1]
        assert sum_of(waiting) is None
        assert total.parts == ()
        given = (one + other).view(6, 4)
        sum_of(given).tell(lambda: told.append(2))
        given.later.give(one)
        assert torch.equal(settled(given), one.view(6, 4))
        assert told == [1]


def test_relu_of_a_product_is_made_with_it():
    x = tensors(3, 4)[0]
    asked = []

    def make(relu=False):
        asked.append(relu)
        return x.relu() if relu else x

    told = []
    with torch.inference_mode(), Deferring() as deferring:
        for relu in (F.relu, torch.relu, nn.ReLU(), lambda t: t.relu()):
            waiting = deferring.wait(Product(make, x.shape, x, lambda: told.append(1)))
            assert torch.equal(relu(waiting), x.relu())
            assert asked.pop() is True
            assert told.pop() == 1
            assert not asked
            assert torch.equal(settled(waiting), x)  # asked for after all
            assert asked.pop() is False
            assert not told
            assert torch.equal(relu(waiting), x.relu())
            assert not asked


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_attention_takes_the_factor_of_its_queries(scale):
    query, key, value = tensors(2, 4, 6, 8, count=3)
    wide = torch.cat([query, key], dim=3)
    expected = F.scaled_dot_product_attention(query * 0.125, key, value, scale=scale)
    with torch.inference_mode(), Deferring(), Attending():
        scaled = wide[..., :8] * 0.125
        base, factor = unscaled(scaled)
        assert factor == 0.125
        found = F.scaled_dot_product_attention(scaled, key, value, scale=scale)
        assert scaled.later.is_open
        torch.testing.assert_close(found, expected)
        found = F.scaled_dot_product_attention(query * 0.125, key * 1.0, value + torch.zeros_like(value), scale=scale)
        torch.testing.assert_close(found, expected)
        assert unscaled(query + query)[1] == 1.0
    assert base.data_ptr() == wide.data_ptr()

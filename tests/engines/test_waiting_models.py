"""Models with habits of their own, scored as a GPU does with values that wait: with a kernel's stand-in, on a CPU.

The stand-in reads and writes memory as the kernel does: packed, from each tensor's first element on.
"""

import sys
import types
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from noback.engines import Local, Plain, side_by_side
from noback.engines.attending import Attending, masked_as_captured
from noback.engines.waiting import Deferring, Sum, sum_of
from tests.conftest import SIZES
from tests.engines.test_causal import BATCHES, POINTS
from tests.engines.test_siblings import KINDS, SideBySide, case


def packed_norm(x, scale, shift, eps, other=None, total=None):
    def flat(tensor):
        return tensor.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (x.shape[-1], 1))

    x = x.contiguous()
    value = flat(x) if other is None else flat(x) + flat(other)
    if total is not None:
        flat(total).copy_(value)
    normed = F.layer_norm(value, value.shape[1:], eps=eps).view(len(scale), -1, x.shape[-1])
    normed = normed * scale[:, None] if shift is None else normed * scale[:, None] + shift[:, None]
    return normed.view(x.shape)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    kernel = types.ModuleType("noback.engines.norm_triton")
    kernel.layer_norm = packed_norm
    monkeypatch.setitem(sys.modules, kernel.__name__, kernel)
    monkeypatch.setattr(side_by_side, "_is_fast", lambda _, weight: weight.dim() == 2)


def scored(model, batch, word_ids, *, waits=True):
    """Scores as on a GPU, with and without values that wait, and the engine."""
    weights = SideBySide(dict(model.named_parameters()), "normal")
    engine = Local(model, weights, word_ids, share="none")
    probes, at = engine._probes, engine._probes.at
    probes._fuses, probes._defers = True, waits

    @contextmanager
    def on_a_gpu(points, examples):
        with at(points, examples), masked_as_captured(), Attending():
            yield

    probes.at = on_a_gpu
    return [engine.score(batch, POINTS) for _ in range(2)], engine


def agree(model, batch, word_ids):
    """The engine, once its scores are those of values that do not wait, to the bit, and the twin's."""
    found, engine = scored(model, batch, word_ids)
    plain, other = scored(model, batch, word_ids, waits=False)
    assert not engine.point_by_point
    assert not other.point_by_point
    for ours, theirs in zip(found, plain, strict=True):
        assert all(map(torch.equal, ours, theirs))
    for ours, twins in zip(found[1], Plain(model, engine.weights, word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)
    assert not list(engine._probes._deferring._open)
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_values_that_do_not_wait_and_the_twins(kind, small_task, tokenizer, monkeypatch):
    sums = []

    def noted(x):
        found = sum_of(x)
        sums.append(found is not None)
        return found

    monkeypatch.setattr(side_by_side, "sum_of", noted)
    engine = agree(*case(kind, small_task, tokenizer))
    # Of two layers and the embeddings; OPT's last norm is given what its last layer made of the tokens that are read.
    if kind in ("opt", "roberta", "bert"):
        sums.clear()
        engine.score(case(kind, small_task, tokenizer)[1], POINTS)
        assert sums.count(True) == (4 if kind == "opt" else 5)


def test_opts_sums_go_on_its_products_end_with_relu_and_its_queries_are_scaled_in_attention(tokenizer, monkeypatch):
    torch.manual_seed(7)
    config = transformers.OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=32,
        vocab_size=16384, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = transformers.OPTForCausalLM(config).eval()
    seen, attention = [], F.scaled_dot_product_attention
    engine = agree(model, *BATCHES["words"](tokenizer))
    decoder, norms = model.model.decoder, [one for one in model.modules() if isinstance(one, nn.LayerNorm)]
    assert [one for one in norms if one not in engine._probes._kept] == [decoder.final_layer_norm]
    assert engine._probes._rectified == {layer.fc1 for layer in decoder.layers}

    class Scales(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is attention:
                seen.append((kwargs["scale"], args[0].shape[2]))
            return func(*args, **(kwargs or {}))

    made, add = [], Sum._made
    monkeypatch.setattr(Sum, "_made", lambda self: (made.append(1), add(self))[1])
    with Scales():
        engine.score(BATCHES["words"](tokenizer)[0], POINTS)
    assert [scale for scale, tokens in seen if tokens > 1] == [0.25]  # the last layer's are looked up before
    assert len(made) == 1  # the last layer's, at the tokens that are read; the others are stored by their norms


class Habit(nn.Module):
    """A layer in place of a model's own."""

    def __init__(self, habit, width=16):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.last, self._habit = None, habit

    def forward(self, hidden_states, *_, **__):
        return self._habit(self, hidden_states)


def transposed_sum(layer, x):
    y = x.transpose(1, 2).contiguous()
    total = y + torch.tanh(y)
    return layer.norm(total.transpose(1, 2)) + total.transpose(1, 2).tanh()


def half_of_a_convolution(layer, x):
    return layer.norm(x + layer.conv(x.transpose(1, 2)).transpose(1, 2) * 0.5)


def half_of_a_convolution_first(layer, x):
    total = layer.conv(x.transpose(1, 2)).transpose(1, 2) * 0.5 + x
    return layer.norm(total) + total


def heads_by_themselves(layer, x):
    rows, tokens, width = x.shape
    q = (layer.up(x).view(rows, tokens, 2, 8).transpose(1, 2) * 0.25).contiguous().view(rows * 2, tokens, 8)
    k = layer.down(x).view(rows, tokens, 2, 8).transpose(1, 2).contiguous().view(rows * 2, tokens, 8)
    a = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), k)
    return x + a.view(rows, 2, tokens, 8).transpose(1, 2).reshape(rows, tokens, width)


def written_after_a_copy(layer, x):
    y = layer.up(x) + x
    flat = y.transpose(1, 2).reshape(len(x), -1)
    y.mul_(0.1)
    return y + flat.view(len(x), 16, -1).transpose(1, 2).tanh()


def another_shape_in_place(layer, x):
    y = layer.up(x) + x
    y.unsqueeze_(1)
    return y.view(y.shape[0], y.shape[2], y.shape[3])


def mapped(layer, x):
    return layer.norm(torch.vmap(lambda row, other: row * 0.5 + other)(layer.up(x), x))


def an_operator_in_place(layer, x):
    x = x.clone()
    y = layer.up(x) + x
    torch.ops.aten.mul_.Scalar(x, 0.5)
    return layer.norm(y) + x


def other_data(layer, x):
    y = layer.up(x)
    total = y + x
    y.data = torch.zeros_like(y)
    return layer.norm(total) + y


def held_by_the_module(layer, x):
    layer.last = layer.up(x) + x
    return layer.down(layer.last).relu() + layer.last


def relu_and_the_product(layer, x):
    x = x.clone()
    product = layer.up(x)
    relu = F.relu(product)
    x.zero_()
    return layer.norm(relu - product) + x


def relu_in_place(layer, x):
    product = layer.up(x)
    return layer.norm(F.relu_(product) - product) + x


def normed_twice(layer, x):
    total = layer.up(x) + x
    return layer.norm(total) + layer.norm(total.view(-1, 16)).view(x.shape)


HABITS = [
    transposed_sum, half_of_a_convolution, half_of_a_convolution_first, heads_by_themselves, written_after_a_copy,
    another_shape_in_place, mapped, an_operator_in_place, other_data, held_by_the_module, relu_and_the_product,
    relu_in_place, normed_twice,
]  # fmt: skip


@pytest.mark.parametrize("habit", HABITS)
def test_whatever_a_layer_does_the_scores_are_those_of_values_that_do_not_wait(habit, small_task):
    torch.manual_seed(7)
    config = transformers.BertConfig(
        **SIZES, vocab_size=16384, pad_token_id=1, hidden_act="relu", max_position_embeddings=64
    )
    model = transformers.BertForMaskedLM(config).eval()
    for tensor in model.parameters():
        if tensor.dim() > 1:
            tensor.data.mul_(3)
    model.bert.encoder.layer[0] = Habit(habit).eval()
    engine = agree(model, small_task.batch(0, 5, 0), small_task.word_ids)
    assert engine._probes._defers is (habit is not another_shape_in_place)


def test_where_values_that_wait_are_wrong_none_waits(small_task, monkeypatch):
    config = transformers.BertConfig(**SIZES, vocab_size=16384, pad_token_id=1, max_position_embeddings=64)
    model, wait = transformers.BertForMaskedLM(config).eval(), Deferring.wait

    def wrong(self, later):
        if hasattr(later, "parts"):
            later.parts = (later.parts[0] * 0.5, *later.parts[1:])
        return wait(self, later)

    monkeypatch.setattr(Deferring, "wait", wrong)
    (_, found), engine = scored(model, small_task.batch(0, 5, 0), small_task.word_ids)
    assert not engine._probes._defers
    assert not engine.point_by_point
    plain = Plain(model, engine.weights, small_task.word_ids).score(small_task.batch(0, 5, 0), POINTS)
    for ours, twins in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)

"""Linears that take one input as one product, which a GPU does: here with a CPU's tensors laid out as a GPU's are."""

import pytest
import torch
from torch import nn

from noback.engines import Local, Plain
from noback.engines.siblings import Siblings, joined
from noback.weights import Weights
from tests.conftest import tiny_causal, tiny_model, weights_of
from tests.engines.test_causal import BATCHES, POINTS

KINDS = ["llama", "opt", "qwen2", "mistral", "gemma", "phi", "mixtral", "roberta", "bert"]
ATTENTION = ("q_proj", "k_proj", "v_proj", "query", "key", "value")


class SideBySide(Weights):
    """The tensors of a group in one piece of memory at each point."""

    def perturbed_together(self, names, points):
        found = super().perturbed_together(names, points)
        if not names:
            return found
        flat = torch.cat([found[name].flatten(1) for name in names], dim=1)
        parts = flat.split_with_sizes([found[name][0].numel() for name in names], dim=1)
        return {name: part.view(found[name].shape) for name, part in zip(names, parts, strict=True)}


def products_of(monkeypatch):
    from noback.engines import probed

    seen, plain = [], probed.products

    def products(x, weight, bias, **options):
        seen.append(weight.shape[1])
        return plain(x, weight, bias, **options)

    monkeypatch.setattr(probed, "products", products)
    return seen


def case(kind, small_task, tokenizer):
    """A model, a batch and the label words."""
    if kind in ("roberta", "bert"):
        return tiny_model(kind), small_task.batch(0, 5, 0), small_task.word_ids
    return tiny_causal(kind), *BATCHES["words"](tokenizer)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_keys_and_values_are_one_product_and_the_scores_the_twins(kind, small_task, tokenizer, monkeypatch):
    model, batch, word_ids = case(kind, small_task, tokenizer)
    weights = SideBySide(dict(model.named_parameters()), "normal")
    engine = Local(model, weights, word_ids, share="none")
    engine._probes._fuses = True
    seen = products_of(monkeypatch)
    engine.score(batch, POINTS)
    seen.clear()
    found = engine.score(batch, POINTS)
    assert not engine.point_by_point
    widths = [len(module.weight) for name, module in model.named_modules() if name.endswith(ATTENTION)]
    assert len(widths) == 6  # of two layers
    assert seen.count(sum(widths[:3])) == 2
    for ours, twins in zip(found, Plain(model, weights, word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_without_a_common_piece_of_memory_each_goes_by_itself(tokenizer, monkeypatch):
    model, (batch, word_ids) = tiny_causal("llama"), BATCHES["words"](tokenizer)
    weights = weights_of(model)
    engine = Local(model, weights, word_ids, share="none")
    engine._probes._fuses = True
    seen = products_of(monkeypatch)
    first = engine.score(batch, POINTS)
    before = list(seen)
    seen.clear()
    assert all(torch.equal(*pair) for pair in zip(first, engine.score(batch, POINTS), strict=True))
    assert seen == before[: len(seen)]


def test_siblings_take_one_input_in_a_row_and_are_alike():
    a, b, c, other, odd = (nn.Linear(4, size, bias=size != 7) for size in (4, 2, 2, 4, 7))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    siblings = Siblings()
    for module, given in ((a, x), (b, x), (other, y), (c, x), (odd, x)):
        siblings.see(module, given)
    assert siblings.of(a) == siblings.of(b) == [a, b]
    assert siblings.of(other) == []
    assert siblings.of(c) == []  # one of its row has no bias
    assert list(siblings.sets(a.weight.nbytes + b.weight.nbytes)) == [(a, b)]
    assert list(siblings.sets(a.weight.nbytes + b.weight.nbytes - 1)) == []
    siblings.see(a, y)  # another input
    assert siblings.of(a) == siblings.of(b) == []
    siblings.forget()
    assert siblings.of(b) == []
    b.weight = a.weight
    for module in (a, b):
        siblings.see(module, x)
    assert siblings.of(a) == []  # one weight


def test_tensors_are_joined_only_where_they_follow_one_another():
    memory = torch.arange(60.0).view(2, 30)
    one, two, three = (memory[:, begin : begin + 8].view(2, 4, 2) for begin in (0, 8, 18))
    assert torch.equal(joined([one, two]), torch.cat([one, two], dim=1))
    assert joined([two, one]) is None
    assert joined([one, three]) is None
    assert joined([one, two.contiguous()]) is None

"""The local engine against its slow twin, on every architecture of the BERT kind."""

import pytest
import torch

from noback.engines import Local, Reference
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import SIZES, tiny_model, weights_of

KINDS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
POINTS = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), Move((Term(4, 1e-2), Term(3, 5e-3))), UNPERTURBED]


def batch_of(task, size=5):
    return task.batch(0, size, 0)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_probes_in_one_forward_equal_whole_perturbed_copies(kind, tied, small_task):
    model = tiny_model(kind, tied=tied)
    weights = weights_of(model)
    batch = batch_of(small_task)
    engine = Local(model, weights, small_task.word_ids)
    fast = engine.score(batch, POINTS)
    assert not engine.point_by_point  # the probed modules did it
    assert all(torch.equal(*pair) for pair in zip(fast, engine.score(batch, POINTS), strict=True))
    slow = Reference(model, weights, small_task.word_ids).score(batch, POINTS)
    assert (slow[0] - slow[1]).abs().max() > 1e-3  # the points are apart, so agreement means something
    for ours, twins in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_a_model_that_uses_a_tuned_weight_outside_its_module_is_scored_point_by_point(small_task):
    """Probed modules would miss such a use and give a wrong slope; the first forward shows it."""
    model = tiny_model("roberta")
    encoder, embedding = model.roberta.encoder, model.roberta.embeddings.word_embeddings
    original = encoder.forward
    encoder.forward = lambda hidden, *args, **kwargs: original(hidden + embedding.weight[5], *args, **kwargs)
    weights, batch = weights_of(model), batch_of(small_task)
    said = []
    engine = Local(model, weights, small_task.word_ids, say=said.append)
    scores = engine.score(batch, POINTS)
    assert engine.point_by_point
    assert said == ["RobertaForMaskedLM does not take points side by side; they are scored one by one, which is slower"]
    for point, ours in zip(POINTS, scores, strict=True):
        moved = tiny_model("roberta")
        weights_of(moved).advance([point])
        encoder, original = moved.roberta.encoder, moved.roberta.encoder.forward
        row = moved.roberta.embeddings.word_embeddings.weight[5]
        encoder.forward = lambda hidden, *args, forward=original, row=row, **kwargs: forward(
            hidden + row, *args, **kwargs
        )
        (theirs,) = Local(moved, weights_of(moved), small_task.word_ids).score(batch, [UNPERTURBED])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


class Own(torch.nn.Module):
    """A module with a vector of its own kind, which counts its forwards."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.forwards = weight, 0

    def forward(self, x):
        self.forwards += 1
        return self.computed(x)


class Mixing(Own):
    """A vector that is not used row by row: each row is scaled by its place, too."""

    def computed(self, x):
        return x * self.weight * torch.arange(1, x.shape[1] + 1)[:, None]


class Turned(Own):
    """A vector whose dimension is asked for."""

    def computed(self, x):
        return x * torch.diag(self.weight).sum(0)


class Sure(Own):
    """One that is sure of its vector's length."""

    def computed(self, x):
        assert self.weight.shape == x.shape[-1:]
        return x * self.weight


class Centred(Own):
    """A vector that is used by its mean, too, which must not be that of all probes."""

    def computed(self, x):
        return x * (1 + self.weight - self.weight.mean())


class Scaling(Own):
    """One that does take them."""

    def computed(self, x):
        return x * self.weight


def with_module(kind, dtype=torch.float32):
    model = tiny_model("roberta", dtype=dtype)
    output = model.roberta.encoder.layer[0].output
    output.LayerNorm = kind(output.LayerNorm.weight)
    return model, output.LayerNorm


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Mixing, Turned, Sure, Centred, Scaling])
def test_a_module_that_does_not_take_the_vectors_of_all_probes_at_once_takes_them_one_by_one(
    kind, dtype, size, small_task
):
    model, module = with_module(kind, dtype)
    weights, near = weights_of(model), 1e-5 if dtype is torch.float32 else 3e-2
    engine = Local(model, weights, small_task.word_ids)
    for batch in (batch_of(small_task, size), batch_of(small_task, 4)):
        expected = Reference(model, weights, small_task.word_ids).score(batch, POINTS)
        module.forwards = 0
        for ours, twins in zip(engine.score(batch, POINTS), expected, strict=True):
            torch.testing.assert_close(ours, twins, atol=near, rtol=near)
    assert not engine.point_by_point
    assert module.forwards == (1 if kind is Scaling else len(POINTS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_forward_gives_the_bits_of_later_ones(dtype, small_task):
    """A run that goes on is one that never stopped."""
    model, _ = with_module(Scaling, dtype)
    engine = Local(model, weights_of(model), small_task.word_ids)
    engine.score(batch_of(small_task, 4), POINTS[:2])
    later = engine.score(batch_of(small_task), POINTS[2:])
    first = Local(model, weights_of(model), small_task.word_ids).score(batch_of(small_task), POINTS[2:])
    assert all(torch.equal(*pair) for pair in zip(first, later, strict=True))


def test_a_norm_of_joined_examples_and_heads_takes_all_probes_at_once(small_task):
    class Joined(Own):
        """Its scaling sees [examples x tokens, 4, width / 4], as some attention does."""

        def __init__(self, weight):
            super().__init__(weight)
            self.inner = Scaling(torch.nn.Parameter(torch.ones(len(weight) // 4)))
            del self.weight

        def computed(self, x):
            return self.inner(x.reshape(-1, 4, x.shape[-1] // 4)).view(x.shape)

    model, module = with_module(Joined)
    weights, batch = weights_of(model), batch_of(small_task)
    engine = Local(model, weights, small_task.word_ids)
    expected = Reference(model, weights, small_task.word_ids).score(batch, POINTS)
    engine.score(batch, POINTS)
    module.inner.forwards = 0
    for ours, twins in zip(engine.score(batch, POINTS), expected, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)
    assert not engine.point_by_point
    assert module.inner.forwards == 1


def test_frozen_weights_are_one_shared_product(small_task):
    from noback.weights import Weights

    model = tiny_model("bert")
    biases = Weights({name: tensor for name, tensor in model.named_parameters() if name.endswith("bias")})
    batch = batch_of(small_task)
    fast = Local(model, biases, small_task.word_ids).score(batch, POINTS)
    for ours, twins in zip(fast, Reference(model, biases, small_task.word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_bfloat16_scores_are_near_the_slow_twins(small_task):
    model = tiny_model("roberta", dtype=torch.bfloat16)
    weights, batch = weights_of(model), batch_of(small_task)
    fast = Local(model, weights, small_task.word_ids).score(batch, POINTS)
    for ours, twins in zip(fast, Reference(model, weights, small_task.word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", ["mpnet", "longformer", "roformer"])
def test_a_model_that_hides_the_batch_is_found_out_and_scored_point_by_point(kind, small_task):
    """Tokens before examples, or relative positions with a table of their own: split by probe, they would go wrong."""
    import transformers

    sizes = {**SIZES, "vocab_size": 16384, "pad_token_id": 1, "max_position_embeddings": 66}
    config = {
        "mpnet": lambda: transformers.MPNetConfig(**sizes),
        "longformer": lambda: transformers.LongformerConfig(**sizes, attention_window=8),
        "roformer": lambda: transformers.RoFormerConfig(**sizes),
    }[kind]()
    torch.manual_seed(3)
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    weights, batch = weights_of(model), batch_of(small_task, 4)
    engine = Local(model, weights, small_task.word_ids)
    fast = engine.score(batch, POINTS)
    for ours, twins in zip(fast, Reference(model, weights, small_task.word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-4, rtol=1e-4)
    assert engine.point_by_point
    again = engine.score(batch, POINTS[:2])
    torch.testing.assert_close(again[0], fast[0], atol=1e-5, rtol=1e-5)


def test_tensors_perturbed_together_serve_one_forward_only_also_where_it_fails(small_task, monkeypatch):
    """As a GPU perturbs small matrices: several at once, each used when its turn comes."""
    model = tiny_model("roberta")
    weights, batch, together = weights_of(model), batch_of(small_task), []

    def groups(names, _points):
        cut = [tuple(names[begin : begin + 8]) for begin in range(0, len(names), 8)]
        return {name: group for group in cut for name in group}

    def perturbed_together(names, points):
        together.append(names)
        return {name: weights.perturbed(name, points) for name in names}

    monkeypatch.setattr(weights, "groups", groups)
    monkeypatch.setattr(weights, "perturbed_together", perturbed_together)
    engine = Local(model, weights, small_task.word_ids)
    engine.score(batch, POINTS[:2])
    found = engine.score(batch, POINTS[2:])
    assert together
    expected = Reference(model, weights, small_task.word_ids).score(batch, POINTS[2:])
    for ours, twins in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)

    def fails(*_args, **_kwargs):
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(model.roberta.encoder.layer[0].intermediate, "forward", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            engine.score(batch, POINTS[:2])
    for ours, twins in zip(engine.score(batch, POINTS[2:]), expected, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)

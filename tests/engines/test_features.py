"""Features: what the decoder is given stands beside the label logits, in whatever way a batch is scored."""

import pytest
import torch

from noback.engines import Local, Reference
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import spec_of
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import NEGATIVE, POSITIVE, tiny_causal, tiny_model, weights_of

POINTS = [Move((Term(3, 1e-1),)), Move((Term(3, -1e-1),)), Move((Term(4, 5e-2), Term(3, 5e-2))), UNPERTURBED]
CAUSAL = {"name": "small", "prompt": "An opinion of a film: {sentence} It was", "words": {"0": " bad", "1": " good"},
          "sentences": ["sentence"]}  # fmt: skip


@pytest.fixture
def causal_task(tokenizer):
    task = Task(spec_of(CAUSAL, "small.toml"), tokenizer)
    task.add("train", [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts])
    return task


def check(model, task, points=POINTS, **options):
    weights, batch = weights_of(model), task.batch(0, 7, 0)
    labels = len(task.word_ids)
    engine = Local(model, weights, task.word_ids, features=True, **options)
    slow = Reference(model, weights, task.word_ids, features=True).score(batch, points)
    plain = Local(model, weights, task.word_ids, **options).score(batch, points)
    found = engine.score(batch, points)
    assert slow[0].shape[1] > labels
    assert (slow[0] - slow[1])[:, labels:].abs().max() > 1e-4  # features are those of the points
    for ours, twins, alone in zip(found, slow, plain, strict=True):
        torch.testing.assert_close(ours, twins, atol=2e-5, rtol=1e-5)
        assert torch.equal(ours[:, :labels], alone)  # to be looked at changes nothing
    return engine


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_a_masked_models_features_are_the_twins(kind, small_task):
    check(tiny_model(kind), small_task)


@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2", "qwen2", "gemma", "mixtral"])
def test_a_causal_models_features_are_the_twins(kind, causal_task):
    assert causal_task.word_ids is not None
    engine = check(tiny_causal(kind), causal_task)
    assert engine.tally.cached > 0 or kind == "gpt2"  # their prompts begin alike


@pytest.mark.parametrize("cut", [{"micro_batch": 2}, {"probes_per_pass": 1}, {"probes_per_pass": 3, "micro_batch": 3}])
def test_they_are_however_a_batch_is_cut(cut, small_task):
    check(tiny_model("roberta"), small_task, **cut)


def test_they_are_point_by_point(small_task):
    """A tuned weight that is used outside its module: the first forward shows it."""

    class Outside(type(tiny_model("roberta").roberta.encoder)):
        def forward(self, hidden, *args, **kwargs):
            return super().forward(hidden + self.embedding.weight[5], *args, **kwargs)

    model = tiny_model("roberta")
    model.roberta.encoder.__class__ = Outside
    model.roberta.encoder.embedding = model.roberta.embeddings.word_embeddings
    assert check(model, small_task).point_by_point


def test_tied_rows_and_a_head_with_a_tensor_of_its_own(small_task):
    check(tiny_model("roberta", tied=False), small_task)
    model = tiny_model("roberta")
    model.lm_head.bias = torch.nn.Parameter(model.lm_head.bias.detach().clone() + 0.1)  # a tensor beside the decoder's
    check(model, small_task)

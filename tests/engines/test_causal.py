"""The local engine against its slow twin on causal architectures: label words, ragged choices, written answers."""

import pytest
import torch

from noback.engines import Local, Reference
from noback.engines.modules.conv1d import is_conv1d
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import load_spec, spec_of
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import NEGATIVE, POSITIVE, tiny_causal, weights_of

KINDS = ["llama", "opt", "qwen2", "qwen3", "gpt2", "mistral", "gemma", "phi", "falcon", "mixtral"]
RMS_NORMS = ["llama", "qwen2", "qwen3", "mistral", "gemma", "mixtral"]
POINTS = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), Move((Term(4, 1e-2), Term(3, 5e-3))), UNPERTURBED]


def words_batch(tokenizer):
    task = Task(load_spec("reviews-causal"), tokenizer)
    task.add("train", [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts])
    return task.batch(0, 5, 0), task.word_ids


def choices_batch(tokenizer):
    """Examples of two and three choices, of one token and more."""
    spec = spec_of({"name": "pick", "prompt": "{text} so", "choices": ["options"], "max_length": 64}, "pick.toml")
    task = Task(spec, tokenizer)
    options = [("it sank.", "great"), ("we laughed for an hour.", "it was dull.", "no"), ("yes", "no")]
    task.add("train", [Example((POSITIVE[index],), 0, choices) for index, choices in enumerate(options)])
    return task.batch(0, 3, 0), task.word_ids


def text_batch(tokenizer):
    task = Task(load_spec("instructions"), tokenizer)
    task.add("train", [Example((text,), 0, accepted=("a long film", "it")[:1]) for text in POSITIVE])
    return task.batch(0, 3, 0, answer_only=True), task.word_ids


BATCHES = {"words": words_batch, "choices": choices_batch, "text": text_batch}


@pytest.mark.parametrize("read", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_probes_of_a_causal_model_equal_whole_perturbed_copies(kind, read, tokenizer, monkeypatch):
    model = tiny_causal(kind)
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    assert bool(norms) is (kind in RMS_NORMS)
    normed = []
    for norm in norms[:1]:
        own = type(norm).forward
        monkeypatch.setattr(type(norm), "forward", lambda self, x, own=own: (normed.append(self), own(self, x))[1])
    weights = weights_of(model)
    before = weights.digest()
    batch, word_ids = BATCHES[read](tokenizer)
    engine = Local(model, weights, word_ids, share="none")
    fast = engine.score(batch, POINTS)
    assert not engine.point_by_point  # the probed modules did it
    normed.clear()
    assert all(torch.equal(*pair) for pair in zip(fast, engine.score(batch, POINTS), strict=True))
    assert set(map(id, normed)) == set(map(id, norms))
    assert len(normed) <= len(norms) + 3  # once for all probes; in the last layer those before attention twice
    slow = Reference(model, weights, word_ids).score(batch, POINTS)
    real = slow[0] != float("-inf")
    assert (slow[0] - slow[1])[real].abs().max() > 1e-4  # the points are apart, so agreement means something
    for ours, twins in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)
    assert weights.digest() == before
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_untied_heads_agree_too(kind, tokenizer):
    model = tiny_causal(kind, tied=False)
    weights = weights_of(model)
    batch, word_ids = choices_batch(tokenizer)
    fast = Local(model, weights, word_ids).score(batch, POINTS)
    for ours, twins in zip(fast, Reference(model, weights, word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_gpt2s_own_linears_take_the_fast_path():
    model = tiny_causal("gpt2")
    assert is_conv1d(model.transformer.h[0].attn.c_attn)
    assert not is_conv1d(model.lm_head)


@pytest.mark.parametrize("limits", [{"micro_batch": 1}, {"micro_batch": 2}, {"probes_per_pass": 1}])
def test_splitting_a_batch_of_choices_changes_no_score(limits, tokenizer):
    model = tiny_causal("llama")
    weights = weights_of(model)
    batch, word_ids = choices_batch(tokenizer)
    whole = Local(model, weights, word_ids).score(batch, POINTS)
    for ours, twins in zip(Local(model, weights, word_ids, **limits).score(batch, POINTS), whole, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_a_candidate_that_is_not_there_scores_minus_infinity(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = choices_batch(tokenizer)
    (scores,) = Local(model, weights_of(model), word_ids).score(batch, [UNPERTURBED])
    assert scores.shape == (3, 3)
    missing = torch.isinf(scores).sum(dim=1).tolist()
    assert sorted(missing) == [0, 1, 1]
    assert bool((scores[~torch.isinf(scores)] < 0).all())


def test_the_head_sees_only_the_tokens_that_are_scored(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = choices_batch(tokenizer)
    engine, seen = Local(model, weights_of(model), word_ids, share="none"), []
    engine.score(batch, [UNPERTURBED])  # the first of its kind is also scored with the last layer whole
    hook = model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    engine.score(batch, [UNPERTURBED])
    hook.remove()
    longest = max(int((row >= 0).sum()) for row in batch.candidates.targets)
    assert seen == [(batch.rows, longest, 16)]
    assert longest < batch.inputs["input_ids"].shape[1]


def test_label_words_are_projected_at_one_token_and_nothing_else_is(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = words_batch(tokenizer)
    engine, made = Local(model, weights_of(model), word_ids), []
    engine.score(batch, [UNPERTURBED])
    hook = model.lm_head.register_forward_hook(lambda _, inputs, output: made.append((inputs[0].shape, output.shape)))
    engine.score(batch, [UNPERTURBED])
    hook.remove()
    assert made == [((5, 1, 16), (5, 1, 2))]

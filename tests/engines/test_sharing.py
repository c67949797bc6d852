"""Prefixes and lower layers done once: the scores of the plain way, the tokens spared, no mixing of probes."""

from dataclasses import replace

import pytest
import torch

from noback.engines import Local, Reference, Tally
from noback.errors import InputError
from noback.objectives import cross_entropy
from noback.tasks import Batch, Task
from noback.tasks.data import Example
from noback.tasks.spec import load_spec, spec_of
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import NEGATIVE, POSITIVE, tiny_causal, tiny_model, weights_of

EPS = 1e-2
POINTS = [Move((Term(3, EPS),)), Move((Term(3, -EPS),)), Move((Term(4, 1e-2), Term(3, 5e-3))), UNPERTURBED]
SHOWN = "a rich story It was great\nslow and flat It was terrible\n"


def words_batch(tokenizer):
    """Demonstrations before every prompt: one prefix of all rows."""
    task = Task(replace(load_spec("reviews-causal"), preamble=SHOWN), tokenizer)
    task.add("train", [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts])
    return task.batch(0, 5, 0), task.word_ids


def choices_batch(tokenizer):
    """A question for each example's two or three candidates, of one token and more, after a common beginning."""
    spec = {"name": "pick", "prompt": "I think {text} so", "choices": ["options"], "max_length": 64}
    task = Task(spec_of(spec, "pick.toml"), tokenizer)
    options = [("it sank.", "great"), ("we laughed for an hour.", "it was dull.", "no"), ("yes", "no")]
    task.add("train", [Example((POSITIVE[index],), 0, choices) for index, choices in enumerate(options)])
    return task.batch(0, 3, 0), task.word_ids


def text_batch(tokenizer):
    """Written answers after an instruction."""
    task = Task(replace(load_spec("instructions"), preamble="Say in a few words what this is about: "), tokenizer)
    task.add("train", [Example((text,), 0, accepted=("a long film",)) for text in POSITIVE])
    return task.batch(0, 3, 0, answer_only=True), task.word_ids


BATCHES = {"words": words_batch, "choices": choices_batch, "text": text_batch}


def upper_half(model):
    """The tensors of the second of two layers."""
    return Weights({name: part for name, part in model.named_parameters() if ".1." in name})


def assert_same(ours, twins):
    for one, other in zip(ours, twins, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("read", BATCHES)
@pytest.mark.parametrize("kind", ["llama", "opt", "qwen2", "qwen3", "gpt2", "gemma", "phi", "falcon", "mixtral"])
@pytest.mark.parametrize("tuned", [weights_of, upper_half], ids=["everything", "upper half"])
def test_what_is_done_once_gives_the_scores_of_whole_perturbed_copies(tuned, kind, read, tokenizer):
    model = tiny_causal(kind)
    weights = tuned(model)
    before = weights.digest()
    batch, word_ids = BATCHES[read](tokenizer)
    said = []
    engine = Local(model, weights, word_ids, say=said.append)
    fast = engine.score(batch, POINTS)
    slow = Reference(model, weights, word_ids).score(batch, POINTS)
    assert_same(fast, slow)
    assert_same(engine.score(batch, POINTS), slow)  # once more, now that it is trusted
    assert said == []
    assert engine.tally.cached > 0
    assert (engine.tally.below > 0) is (tuned is upper_half)
    assert weights.digest() == before
    assert not any("forward" in module.__dict__ for module in model.modules())


def rows_batch(rows):
    """Rows of token ids, padded; the answer is read at each row's last token."""
    ids = torch.ones((len(rows), max(map(len, rows))), dtype=torch.long)
    attention = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], attention[index, : len(row)] = torch.tensor(row), 1
    last = torch.tensor([len(row) - 1 for row in rows])
    return Batch({"input_ids": ids, "attention_mask": attention}, last, torch.zeros(len(rows), dtype=torch.long))


# 17 tokens, of which 8 are other tokens or stand after another prefix.
ROWS = [[0, 5, 6, 7], [0, 5, 6, 8, 9], [3, 4], [0, 5, 6, 7], [0, 5]]


def test_the_tally_of_a_batch_that_is_counted_by_hand():
    model = tiny_causal("llama")
    engine = Local(model, weights_of(model), [10, 11])
    engine.score(rows_batch(ROWS), POINTS[:2])
    assert engine.tally == Tally(tokens=2 * 17, cached=2 * (17 - 8))
    engine.score(rows_batch(ROWS), [UNPERTURBED])
    assert engine.tally == Tally(tokens=3 * 17, cached=3 * (17 - 8))


def test_the_tally_of_the_layers_below_is_of_the_tokens_that_were_computed():
    model = tiny_causal("llama")
    engine = Local(model, upper_half(model), [10, 11])
    engine.score(rows_batch(ROWS), POINTS[:3])
    assert engine.tally == Tally(tokens=3 * 17, cached=3 * 9, below=2 * 8, layers=1)
    assert (
        str(engine.tally)
        == "27 of 51 tokens were cached; 16 of the others passed the first 1 layers with another point's"
    )


def test_the_layers_compute_each_shared_token_once_a_probe():
    model = tiny_causal("llama")
    engine = Local(model, weights_of(model), [10, 11])
    engine.score(rows_batch(ROWS), POINTS[:2])
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2]))
    engine.score(rows_batch(ROWS), POINTS[:2])
    assert seen == [(2, 8)]


@pytest.mark.parametrize("share", ["layers", "all"])
def test_the_layers_below_the_first_tuned_one_see_one_copy_of_the_batch(share, tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = words_batch(tokenizer)
    engine = Local(model, upper_half(model), word_ids, share=share)
    engine.score(batch, POINTS[:3])
    seen = {}
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.q_proj.register_forward_pre_hook(
            lambda _, inputs, index=index: seen.update({index: len(inputs[0])})
        )
    engine.score(batch, POINTS[:3])
    rows = {"layers": 5, "all": 1}[share]
    assert seen == {0: rows, 1: 3 * rows}


@pytest.mark.parametrize("share", ["none", "prefixes", "layers"])
def test_what_is_switched_off_is_not_done(share, tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = words_batch(tokenizer)
    engine = Local(model, upper_half(model), word_ids, share=share)
    scores = engine.score(batch, POINTS)
    assert (engine.tally.cached > 0) is (share == "prefixes")
    assert (engine.tally.below > 0) is (share == "layers")
    assert_same(scores, Reference(model, upper_half(model), word_ids).score(batch, POINTS))


def test_an_unknown_way_of_sharing_is_refused():
    model = tiny_causal("llama")
    with pytest.raises(InputError, match="share is 'prefix'; expected one of all, layers, none, prefixes"):
        Local(model, weights_of(model), [10, 11], share="prefix")


def slope(scores, batch):
    plus, minus = (cross_entropy(one, batch.gold) for one in scores)
    return (plus - minus) / (2 * EPS)


def reuse_of_the_first_probe(model, tokens):
    """Let every probe use the keys and values that the first one has for the prefix: the mistake itself."""

    def mixed(_module, _inputs, output):
        if output.dim() == 3 and len(output) == 2 and output.shape[1] > tokens:
            output = output.clone()
            output[1, :tokens] = output[0, :tokens]
        return output

    return [
        part.register_forward_hook(mixed)
        for layer in model.model.layers
        for part in (layer.self_attn.k_proj, layer.self_attn.v_proj)
    ]


def prefix_length(batch):
    ids = batch.inputs["input_ids"]
    return int((ids == ids[0]).all(dim=0).long().cumprod(dim=0).sum())


def spread(model):
    """A model whose attention matters: fresh random weights, ten times as large."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "proj" in name:
                tensor.mul_(10)
    return model


def test_keys_and_values_of_one_point_used_for_another_give_a_wrong_slope(tokenizer):
    model = spread(tiny_causal("llama"))
    batch, word_ids = words_batch(tokenizer)
    weights = weights_of(model)
    truth = slope(Reference(model, weights, word_ids).score(batch, POINTS[:2]), batch)
    engine = Local(model, weights, word_ids)
    right = slope(engine.score(batch, POINTS[:2]), batch)
    reuse_of_the_first_probe(model, prefix_length(batch))
    wrong = slope(engine.score(batch, POINTS[:2]), batch)  # trusted by now, so nothing stops it
    assert right == pytest.approx(truth, rel=1e-2)
    assert abs(wrong - truth) > 0.2 * abs(truth)


def test_keys_and_values_of_one_point_used_for_another_are_found_out_at_first_use(tokenizer):
    model = spread(tiny_causal("llama"))
    batch, word_ids = words_batch(tokenizer)
    weights = weights_of(model)
    truth = Reference(model, weights, word_ids).score(batch, POINTS[:2])
    said = []
    engine = Local(model, weights, word_ids, say=said.append)
    reuse_of_the_first_probe(model, prefix_length(batch))
    assert_same(engine.score(batch, POINTS[:2]), truth)
    assert said == ["LlamaForCausalLM does not share prefixes; it is scored the plain way"]
    assert engine.tally.cached == 0


def test_a_model_that_does_not_go_by_the_positions_it_is_told_is_scored_the_plain_way(tokenizer, monkeypatch):
    model = spread(tiny_causal("llama"))
    batch, word_ids = words_batch(tokenizer)
    weights = weights_of(model)
    kind = type(model.model.rotary_emb)
    told = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x, position_ids: told(self, x, torch.arange(x.shape[1])[None]))
    said = []
    engine = Local(model, weights, word_ids, say=said.append)
    slow = Reference(model, weights, word_ids).score(batch, POINTS)
    assert_same(engine.score(batch, POINTS), slow)
    assert_same(engine.score(batch, POINTS), slow)
    assert said == ["LlamaForCausalLM does not share prefixes; it is scored the plain way"]


def test_a_window_of_attention_is_never_laid_out(tokenizer):
    model = tiny_causal("mistral")  # a window of four tokens
    batch, word_ids = words_batch(tokenizer)
    weights = weights_of(model)
    engine = Local(model, weights, word_ids)
    assert_same(engine.score(batch, POINTS), Reference(model, weights, word_ids).score(batch, POINTS))
    assert engine.tally.cached == 0


def test_a_masked_model_shares_nothing(small_task):
    model = tiny_model("roberta")
    engine = Local(model, upper_half(model), small_task.word_ids)
    engine.score(small_task.batch(0, 4, 0), POINTS)
    assert engine.tally == Tally()


@pytest.mark.parametrize("limits", [{"micro_batch": 2}, {"probes_per_pass": 1}, {"probes_per_pass": 3}])
def test_splitting_the_work_changes_no_score(limits, tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = choices_batch(tokenizer)
    whole = Local(model, upper_half(model), word_ids).score(batch, POINTS)
    assert_same(Local(model, upper_half(model), word_ids, **limits).score(batch, POINTS), whole)


def test_the_first_pass_gives_the_bits_of_every_later_one(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = words_batch(tokenizer)
    engine = Local(model, weights_of(model), word_ids)
    first, later = engine.score(batch, POINTS), engine.score(batch, POINTS)
    assert all(torch.equal(*pair) for pair in zip(first, later, strict=True))


def test_bfloat16_weights_share_too(tokenizer):
    model = tiny_causal("llama", dtype=torch.bfloat16)
    batch, word_ids = words_batch(tokenizer)
    engine = Local(model, weights_of(model), word_ids)
    plain = Local(model, weights_of(model), word_ids, share="none")
    for ours, theirs in zip(engine.score(batch, POINTS), plain.score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
    assert engine.tally.cached > 0

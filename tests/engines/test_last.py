"""The last layer where it is read: the twin's scores, for few tokens; a layer that cannot be cut is computed whole."""

import gc
import weakref

import pytest
import torch
import transformers
from torch import nn

from noback.adapters import Prefix
from noback.engines import Local, Reference
from noback.engines.attention import overridden, own_attention
from noback.engines.perturbed import TensorNames
from noback.engines.readout import layers_of
from noback.engines.reuse.last_layer import OnlyAt, last_layer
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import spec_of
from noback.values import UNPERTURBED
from noback.weights import Weights
from tests.conftest import tiny_causal, tiny_model, weights_of
from tests.engines import test_sharing
from tests.engines.test_causal import BATCHES, KINDS, POINTS

WHOLE = "the last layer of LlamaForCausalLM is computed whole"
MASKED = ["bert", "roberta", "distilbert", "electra", "modernbert"]


def masked(kind):
    model = tiny_model(kind)
    model.set_attn_implementation("sdpa")
    return model


def tokens_seen(layer):
    """How many tokens each module of a layer was given, in turn."""
    seen = []
    for part in layer.modules():
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D":
            part.register_forward_pre_hook(lambda _, given: seen.append(given[0].numel() // given[0].shape[-1]))
    return seen


def check(model, batch, word_ids):
    weights = weights_of(model)
    first, last = (tokens_seen(layers_of(model)[place]) for place in (0, -1))
    engine = Local(model, weights, word_ids, share="none")
    engine.score(batch, POINTS)
    first.clear(), last.clear()
    found = engine.score(batch, POINTS)
    assert not engine.point_by_point
    rows, tokens = len(POINTS) * batch.rows, batch.inputs["input_ids"].shape[1]
    places = batch.mask_positions.view(batch.rows, -1).shape[1]
    assert 2 * places <= tokens
    assert {first[0], first[-1], last[0]} == {rows * tokens}
    assert last[-1] == rows * places
    expected = Reference(model, weights, word_ids).score(batch, POINTS)
    for ours, twins in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MASKED)
def test_masked_models_compute_their_last_layer_at_the_mask(kind, small_task):
    check(masked(kind), small_task.batch(0, 5, 0), small_task.word_ids)


@pytest.mark.parametrize("read", BATCHES)
# Mixtral's experts are no linears, and Falcon computes attention outside the library's interface.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("mixtral", "falcon")])
def test_causal_models_compute_their_last_layer_where_words_and_continuations_are_read(kind, read, tokenizer):
    check(tiny_causal(kind), *BATCHES[read](tokenizer))


def test_experts_see_few_tokens_too(tokenizer):
    model = tiny_causal("mixtral")
    batch, word_ids = BATCHES["words"](tokenizer)
    engine, seen = Local(model, weights_of(model), word_ids, share="none"), []
    layers_of(model)[-1].mlp.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape[:2])))
    engine.score(batch, POINTS)
    seen.clear()
    engine.score(batch, POINTS)
    assert seen == [(len(POINTS) * batch.rows, 1)]


@pytest.mark.parametrize("tuned", [weights_of, test_sharing.upper_half], ids=["everything", "upper half"])
def test_trees_and_shared_layers_are_cut_too(tuned, tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = test_sharing.words_batch(tokenizer)
    engine, last = Local(model, tuned(model), word_ids), tokens_seen(layers_of(model)[-1])
    engine.score(batch, POINTS)
    last.clear()
    engine.score(batch, POINTS)
    assert engine.tally.cached > 0
    assert last[-1] < len(POINTS) * batch.rows * 2  # the tokens that are read, and what pads trees to one another
    assert last[0] > 3 * last[-1]


def test_scores_do_not_depend_on_what_was_scored_before(tokenizer):
    """Or a resumed run, whose first score is another, would not go on as one that never stopped."""
    model = tiny_causal("llama")
    batch, word_ids = BATCHES["words"](tokenizer)
    weights, said = weights_of(model), []
    first, second = (Local(model, weights, word_ids, share="none", say=said.append) for _ in range(2))
    still = first.score(batch, [UNPERTURBED])
    moved = first.score(batch, POINTS)
    assert all(torch.equal(*pair) for pair in zip(moved, second.score(batch, POINTS), strict=True))
    for engine in (first, second):
        assert torch.equal(engine.score(batch, [UNPERTURBED])[0], still[0])
    assert said == []


class Mixing(nn.Module):
    """A layer after whose attention tokens still see one another."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden, **kwargs):
        found = self.layer(hidden, **kwargs)
        return found + found.mean(dim=1, keepdim=True)


def test_a_layer_that_mixes_tokens_elsewhere_is_found_out_and_computed_whole(tokenizer):
    model = tiny_causal("llama")
    model.model.layers[-1] = Mixing(model.model.layers[-1])
    batch, word_ids = BATCHES["words"](tokenizer)
    weights, said = weights_of(model), []
    engine = Local(model, weights, word_ids, share="none", say=said.append)
    for _ in range(2):
        found = engine.score(batch, POINTS)
        assert said == [WHOLE]
        assert not engine.point_by_point
        for ours, twins in zip(found, Reference(model, weights, word_ids).score(batch, POINTS), strict=True):
            torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_the_first_batch_that_can_be_cut_is_checked_though_one_before_could_not(tokenizer):
    model = tiny_causal("llama")
    model.model.layers[-1] = Mixing(model.model.layers[-1])
    spec = {"name": "pick", "prompt": "{text} so", "choices": ["options"], "max_length": 64}
    text, long = "a film of some length about a man and his dog", "we laughed for an hour and it was dull in the end"
    weights, said = weights_of(model), []
    engine = Local(model, weights, None, share="none", say=said.append)
    for prompt, choices, known in (("a", (long, long + " no"), []), (text, ("yes", "no"), [WHOLE])):
        task = Task(spec_of(spec, "pick.toml"), tokenizer)
        task.add("train", [Example((prompt,), 0, choices)])
        batch = task.batch(0, 1, 0)
        found = engine.score(batch, POINTS)
        assert said == known
        for ours, twins in zip(found, Reference(model, weights, None).score(batch, POINTS), strict=True):
            torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_a_layer_that_is_all_layers_is_not_the_last_one(small_task):
    torch.manual_seed(7)
    config = transformers.AlbertConfig(
        vocab_size=16384, embedding_size=12, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    weights, batch, said = weights_of(model), small_task.batch(0, 5, 0), []
    found = Local(model, weights, small_task.word_ids, say=said.append).score(batch, POINTS)
    assert said == ["the last layer of AlbertForMaskedLM is computed whole"]
    for ours, twins in zip(found, Reference(model, weights, small_task.word_ids).score(batch, POINTS), strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def test_modules_are_their_own_again_where_a_cut_layer_fails(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = BATCHES["words"](tokenizer)
    engine = Local(model, weights_of(model), word_ids, share="none")
    engine.score(batch, POINTS)

    class Fails(nn.Module):
        def forward(self, _x):
            raise RuntimeError("no memory")

    layers_of(model)[-1].mlp.act_fn = Fails()
    with pytest.raises(RuntimeError, match="no memory"):
        engine.score(batch, POINTS)
    assert not [name for name, module in model.named_modules() if "forward" in module.__dict__]


def test_nothing_of_a_cut_layer_is_held_until_garbage_is_collected(tokenizer):
    model = tiny_causal("llama")
    batch, word_ids = BATCHES["words"](tokenizer)
    engine, given = Local(model, weights_of(model), word_ids, share="none"), []
    engine.score(batch, POINTS)
    layers_of(model)[-1].register_forward_pre_hook(lambda _, args: given.append(weakref.ref(args[0])))
    gc.disable()
    try:
        engine.score(batch, POINTS)
        assert [one() for one in given] == [None]
    finally:
        gc.enable()


def run_at(model, ids, positions):
    """The outputs of the last layer, whole and at the positions, and whether it was cut."""
    (layer,) = layers_of(model)[-1:]
    given = []
    hook = layer.register_forward_hook(
        lambda _, __, output: given.append(output[0] if isinstance(output, tuple) else output)
    )
    only_at = OnlyAt(layer, positions, own_attention(model).function)
    with torch.no_grad():
        model.base_model(input_ids=ids)
        with only_at.active(), overridden(model, only_at.attention, full_masks=False):
            model.base_model(input_ids=ids)
        model.base_model(input_ids=ids)
    hook.remove()
    return given, only_at.cut


@pytest.mark.parametrize("kind", ["llama", "roberta"])
def test_a_layer_is_what_it_is_at_the_positions_and_its_own_again_after(kind):
    model = tiny_causal(kind) if kind == "llama" else masked(kind)
    ids, positions, rows = torch.arange(24).view(2, 12) + 5, torch.tensor([[3, 7], [11, 11]]), torch.arange(2)[:, None]
    (whole, part, after), cut = run_at(model, ids, positions)
    assert cut
    torch.testing.assert_close(part[rows, positions], whole[rows, positions], atol=1e-6, rtol=1e-6)
    assert bool((part[0, 0] == 0).all())
    assert torch.equal(after, whole)
    assert model.config._attn_implementation == "sdpa"


def test_positions_that_are_most_of_the_tokens_or_of_other_rows_leave_a_layer_whole():
    model, ids = tiny_causal("llama"), torch.arange(8).view(2, 4) + 5
    for places, same in (([[0, 1, 2]] * 2, True), ([[0]] * 3, True), ([[0]] * 2, False)):
        (whole, part, _), cut = run_at(model, ids, torch.tensor(places))
        assert torch.equal(part, whole) is same is not cut


def test_a_model_with_an_attention_of_its_own_is_computed_whole(tokenizer):
    assert own_attention(tiny_causal("falcon")) is None
    assert own_attention(tiny_model("roberta")) is None  # whose attention is eager
    model = tiny_causal("falcon")
    batch, word_ids = BATCHES["words"](tokenizer)
    engine, last = Local(model, weights_of(model), word_ids, share="none"), tokens_seen(layers_of(model)[-1])
    engine.score(batch, POINTS)
    last.clear()
    engine.score(batch, POINTS)
    assert len(set(last)) == 1


def test_attention_that_is_probed_as_a_whole_is_not_cut():
    model = tiny_causal("llama")
    tuned = Prefix(tokens=2).attach(model, (), 0)
    assert last_layer(model, TensorNames(model.named_parameters(), Weights(tuned, "normal"))) is None

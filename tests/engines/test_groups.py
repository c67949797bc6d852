"""Groups of examples in one forward, and thin branches in place of perturbed copies: as the slow way gives it."""

import importlib
from functools import partial
from itertools import chain

import pytest
import torch

from noback.adapters import Lora, Prefix
from noback.directions import KeptColumns, LowRank, Rank1
from noback.engines import Local, Reference
from noback.engines.by_group import as_one, group_by_group, on_the_cpu
from noback.tasks import Batch, Candidates
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import tiny_causal, tiny_model, weights_of

NOISES = {"rank1": Rank1(), "low_rank": LowRank(2), "kept_columns": KeptColumns(2)}
noises = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


def sides(groups, eps=0.05):
    """The two sides of a direction of each group's own."""
    return [[Move((Term(10 + group, eps),)), Move((Term(10 + group, -eps),))] for group in range(groups)]


def apart(size, count):
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def tokens_of(rows, length, candidates=None):
    """Some tokens, and where the answer is read: the last two where candidates of two tokens are scored."""
    ids = torch.randint(4, 100, (rows, length), generator=torch.Generator().manual_seed(rows))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if candidates is None:
        return Batch(inputs, torch.full((rows,), length - 1), torch.zeros(rows, dtype=torch.long))
    positions = torch.tensor([[length - 3, length - 2]]).expand(rows, 2).clone()
    examples = rows // candidates
    targets = torch.gather(ids, 1, positions + 1)
    counts = Candidates(targets, (candidates,) * examples, candidates)
    return Batch(inputs, positions, torch.zeros(examples, dtype=torch.long), counts)


def differences(found, expected):
    pairs = [*zip(chain(*found), chain(*expected), strict=True)]
    assert all(one.shape == other.shape for one, other in pairs)
    return [float((one - other).abs().max()) for one, other in pairs]


def check(model, weights, batch, words, size=1, **options):
    """The local engine's scores of groups are the reference's; it says which ways it took."""
    said = []
    engine = Local(model, weights, words, say=said.append, **options)
    groups = apart(size, len(batch))
    points, before = sides(len(groups)), weights.digest()
    found = engine.score_groups(batch, groups, points)
    expected = group_by_group(Reference(model, weights, words), batch, groups, points)
    allowed = 5e-2 if any(tensor.dtype == torch.bfloat16 for tensor in weights.tensors.values()) else 2e-5
    assert max(differences(found, expected)) <= allowed
    assert (
        min(differences([[one[0]] for one in expected], [[one[1]] for one in expected])) > 4e-5
    )  # the sides do differ
    assert weights.digest() == before
    return said


@pytest.fixture
def formed(monkeypatch):
    """The shapes of the tensors that were formed whole at several points."""
    found, perturbed = [], Weights.perturbed

    def noted(self, name, points, *args, **kwargs):
        result = perturbed(self, name, points, *args, **kwargs)
        found.append((len(points), tuple(result.shape)))
        return result

    monkeypatch.setattr(Weights, "perturbed", noted)
    return found


@noises
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_examples_with_directions_of_their_own_go_through_a_masked_model_at_once(
    kind, dtype, noise, small_task, formed
):
    model = tiny_model(kind, dtype=dtype)
    weights = weights_of(model, noise)
    said = check(model, weights, small_task.batch(0, 7, 0), small_task.word_ids)
    assert not said
    assert not [shape for count, shape in formed if count == 14 and len(shape) == 3]  # no matrix at all the points


@noises
@pytest.mark.parametrize("kind", ["llama", "opt", "gpt2", "qwen2", "mistral", "gemma", "phi", "falcon"])
def test_so_they_do_through_a_causal_one(kind, noise, formed):
    model = tiny_causal(kind, vocab=128)
    said = check(model, weights_of(model, noise), tokens_of(6, 13), [10, 11])
    assert not said
    own_linear = kind == "falcon"  # a class of its own, which goes probe by probe
    assert own_linear or not [shape for count, shape in formed if count == 12 and len(shape) == 3]


@noises
def test_so_they_do_where_each_example_has_candidates(noise):
    model = tiny_causal("llama", vocab=128)
    assert not check(model, weights_of(model, noise), tokens_of(8, 13, candidates=2), None)
    assert not check(model, weights_of(model, noise), tokens_of(8, 13, candidates=2), None, size=2)


@pytest.mark.parametrize("noise", ["normal", "rank1"])
@pytest.mark.parametrize("adapter", [Lora(rank=2), Prefix(tokens=2)], ids=lambda one: one.kind)
def test_small_adapters_are_formed_for_every_group_whatever_the_noise(adapter, noise):
    model = tiny_causal("llama", vocab=128)
    weights = Weights(adapter.attach(model, (), 0), noise)
    weights.advance([Move((Term(1, 0.1),))])  # LoRA begins with B at zero
    said = check(model, weights, tokens_of(6, 13), [10, 11])
    assert not said or adapter.kind == "prefix"


def test_elementwise_noise_of_a_whole_model_is_taken_group_by_group(monkeypatch, small_task):
    """A copy of the weights for each group and point is what would not fit."""
    monkeypatch.setattr("noback.engines.by_group._MOST", 1000)
    model, calls = tiny_model("bert", vocab=16384), []
    engine = Local(model, weights_of(model), small_task.word_ids)
    monkeypatch.setattr(engine, "logits", lambda batch, points: calls.append(len(batch)) or torch.zeros(2, 1, 2))
    engine.score_groups(small_task.batch(0, 3, 0), apart(1, 3), sides(3))
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("options", [{"micro_batch": 3}, {"micro_batch": 1}, {"probes_per_pass": 1}, {}], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3])  # seven examples: the last group may be smaller
def test_however_the_work_is_cut_each_group_has_its_own_scores(size, options, small_task):
    model = tiny_model("roberta")
    check(model, weights_of(model, "rank1"), small_task.batch(0, 7, 0), small_task.word_ids, size, **options)


def test_points_with_several_terms_or_none_are_thin_branches_too(small_task):
    model = tiny_model("bert")
    weights, batch = weights_of(model, LowRank(2)), small_task.batch(0, 4, 0)
    points = [UNPERTURBED, Move((Term(1, 0.05), Term(2, -0.02))), Move((Term(3, 0.05),))]
    found, expected = (kind(model, weights, small_task.word_ids).score(batch, points) for kind in (Local, Reference))
    assert max(differences([found], [expected])) < 2e-5


def test_a_branch_that_differs_is_found_out_and_the_slow_way_serves(monkeypatch, small_task):
    """A planted defect: the branch of every probe with the sign of the other side."""
    linear = importlib.import_module("noback.engines.modules.linear")  # its name is the handler's too
    thin = linear.thin_branch

    def wrong(x, weight, products, bias):
        return thin(x, weight, products._replace(of_rows=-products.of_rows), bias)

    monkeypatch.setattr(linear, "thin_branch", wrong)
    model = tiny_model("bert")
    said = check(model, weights_of(model, "rank1"), small_task.batch(0, 6, 0), small_task.word_ids)
    assert [one for one in said if "does not take groups side by side" in one]
    assert [one for one in said if "does not take points side by side" in one]


@noises
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_looked_up_have_the_bits_of_the_perturbed_tensor(noise, dtype):
    weights = Weights({"w": torch.randn(300, 40, generator=torch.Generator().manual_seed(0)).to(dtype)}, noise)
    points = [Move((Term(1, 1e-2), Term(2, 0.3))), Move((Term(1, -1e-2),)), Move((Term(3, 0.5),))]
    ids = torch.tensor([[3, 0, 299], [3, 3, 7], [128, 2, 127]])
    whole, found = weights.perturbed("w", points), weights.looked_up("w", points, ids)
    assert torch.equal(found, torch.stack([whole[point][rows] for point, rows in enumerate(ids)]))
    assert torch.equal(weights.looked_up("w", points, ids[1], only=1), whole[1][ids[1]])
    with pytest.raises(IndexError):
        weights.looked_up("w", points, torch.tensor([[3], [1], [300]]))


def test_the_last_layer_is_computed_where_it_is_read_for_groups_too():
    model = tiny_causal("llama", vocab=128)
    engine, batch = Local(model, weights_of(model, "rank1"), [10, 11]), tokens_of(6, 13)
    seen = []
    model.model.layers[1].mlp.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].shape))
    engine.score_groups(batch, apart(1, 6), sides(6))
    seen.clear()
    engine.score_groups(batch, apart(1, 6), sides(6))
    assert seen == [(12, 1, 16)]


def test_a_step_s_points_are_thin_branches_of_one_product(formed, small_task):
    model = tiny_model("roberta")
    engine = Local(model, weights_of(model, "rank1"), small_task.word_ids)
    score = partial(engine.score, small_task.batch(0, 5, 0), sides(1)[0])
    score()
    formed.clear()
    score()
    assert not [shape for _, shape in formed if len(shape) == 3]


def test_groups_are_one_tensor_in_the_order_of_their_examples_and_are_fetched_at_once(monkeypatch):
    made = iter(range(100))
    found = [[torch.full((rows, width), float(next(made))) for _ in range(2)] for rows, width in ((2, 3), (1, 2))]
    whole = as_one(found)
    assert whole[..., 0].tolist() == [[0, 0, 2], [1, 1, 3]]
    assert whole[:, 2, 2].tolist() == [float("-inf")] * 2  # an example with fewer candidates
    assert torch.isfinite(whole[:, :2]).all()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for ours, theirs in zip(chain(*on_the_cpu(found)), chain(*found), strict=True):
        assert torch.equal(ours, theirs)

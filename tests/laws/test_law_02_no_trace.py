"""Law 2: scoring changes no weight."""

import pytest
import torch

from noback import MeZO
from noback.engines import Local
from noback.tasks import Batch
from noback.values import Move, Term
from noback.weights import Weights
from tests.conftest import tiny_causal, tiny_model, weights_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_many_scores_leave_the_bits_as_they_were(kind, dtype, small_task):
    model = tiny_model(kind, dtype=dtype)
    weights = weights_of(model)
    state, before = {name: id(tensor) for name, tensor in model.named_parameters()}, weights.digest()
    engine = Local(model, weights, small_task.word_ids)
    batch = small_task.batch(0, 2, 0)
    for seed in range(5):
        engine.score(batch, [Move((Term(100 * seed + probe, 0.1),)) for probe in range(20)])
    assert weights.digest() == before
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == state
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("interrupted", [False, True])
def test_sharing_what_rows_and_points_have_in_common_leaves_the_model_as_it_was(interrupted):
    model = tiny_causal("llama")
    upper = Weights({name: part for name, part in model.named_parameters() if ".layers.1." in name})
    before, engine = weights_of(model).digest(), Local(model, upper, [10, 11])
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]]), "attention_mask": torch.ones(2, 4).long()}
    batch = Batch(inputs, torch.tensor([3, 3]), torch.tensor([0, 1]))
    engine.score(batch, [Move((Term(1, 0.1),)), Move((Term(1, -0.1),))])
    assert engine.tally.cached
    assert engine.tally.below
    if interrupted:

        def interrupt(*_):
            raise KeyboardInterrupt

        model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.score(batch, [Move((Term(1, 0.1),)), Move((Term(1, -0.1),))])
    assert weights_of(model).digest() == before
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_interrupted_score_leaves_the_model_as_it_was(small_task):
    model = tiny_model("roberta")
    weights = weights_of(model)
    before = weights.digest()
    engine = Local(model, weights, small_task.word_ids)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.roberta.encoder.layer[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.score(small_task.batch(0, 2, 0), [Move((Term(1, 0.1),))])
    hook.remove()
    assert weights.digest() == before
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_closure_sees_other_weights_and_leaves_them_alone():
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    seen = []
    optimizer = MeZO(model, lr=1e-12, eps=0.5)

    def closure():
        seen.append(model(torch.eye(3)).detach().clone())
        return 0.0

    optimizer.step(closure)
    assert torch.equal(model.weight, before)
    assert not torch.allclose(seen[0], seen[1])

"""The adapter that tunes small weights alone: what it tunes, and that the rest stands still everywhere."""

import dataclasses

import pytest
import torch

from noback import Adam, InputError, RunConfig, Sgd, Sparse, TwoSided, train
from noback.cli.main import main
from noback.engines import Local, Reference
from noback.run import Run
from noback.tuned import tuned_run
from noback.values import Move, Term
from noback.weights import Weights
from tests.conftest import tiny_model

MOVE = Move((Term(5, 0.5), Term(6, -0.25)), 0.5)


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=7, batch=4, eval_every=3, test_limit=8,
        rule=Sgd(lr=1e-2, weight_decay=0.1), estimator=TwoSided(eps=1e-2), adapter=Sparse(share=0.5),
    )  # fmt: skip


def masked(share, **tensors):
    masks = Sparse(share=share).masks(tensors)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    return Weights(tensors, masks=masks), masks, before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.75, 1.0])
def test_the_smallest_weights_of_each_tensor_are_tuned_and_move_as_they_would_in_full(share, dtype):
    made = torch.Generator().manual_seed(3)
    tensors = {"layer.weight": torch.randn(20, 9, generator=made).to(dtype), "bias": torch.arange(1.0, 33.0).to(dtype)}
    whole = Weights({name: tensor.clone() for name, tensor in tensors.items()})
    weights, masks, before = masked(share, **tensors)
    assert weights.size == sum(int(mask.sum()) for mask in masks.values())
    for name, mask in masks.items():
        sizes = before[name].abs()
        assert mask.float().mean() >= share - 1 / mask.numel()
        assert share == 1.0 or sizes[mask].max() <= sizes[~mask].min()
    perturbed = {name: weights.perturbed(name, [MOVE, Move(())])[0] for name in tensors}
    weights.advance([MOVE])
    in_full = {name: whole.perturbed(name, [MOVE])[0] for name in tensors}
    whole.advance([MOVE])
    for name, mask in masks.items():
        moved = weights.tensors[name]
        assert torch.equal(moved, torch.where(mask, whole.tensors[name], before[name]))
        assert torch.equal(perturbed[name], torch.where(mask, in_full[name], before[name]))


def test_rows_and_embeddings_stand_still_where_the_mask_says_so():
    weights, masks, before = masked(0.5, table=torch.randn(40, 6, generator=torch.Generator().manual_seed(4)))
    whole, rows = weights.perturbed("table", [MOVE, Move(())]), torch.tensor([1, 7, 39])
    assert torch.equal(weights.perturbed("table", [MOVE, Move(())], rows), whole[:, rows])
    ids = torch.tensor([[3, 39, 3], [0, 7, 1]])
    found = weights.looked_up("table", [MOVE, Move(())], ids)
    assert torch.equal(found, torch.stack([whole[0][ids[0]], whole[1][ids[1]]]))
    assert torch.equal(found[0][~masks["table"][ids[0]]], before["table"][ids[0]][~masks["table"][ids[0]]])


def test_the_engine_gives_the_reference_engines_scores(small_task):
    model = tiny_model("roberta")
    tuned = Sparse(share=0.4).attach(model, (), 0)
    weights = Weights(tuned, masks=Sparse(share=0.4).masks(tuned))
    batch, points = small_task.batch(0, 4, 0), [Move((Term(3, 0.05),)), Move((Term(3, -0.05),))]
    found, expected = (
        engine(model, weights, small_task.word_ids).score(batch, points) for engine in (Local, Reference)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rule", [Sgd(lr=1e-2, weight_decay=0.1), Adam(lr=1e-3)], ids=lambda rule: rule.kind)
def test_a_run_leaves_large_weights_alone_and_replays_to_its_bits(config, tmp_path, rule):
    config = dataclasses.replace(config, rule=rule)
    base = Run(config)
    masks = config.adapter.masks(base.weights.tensors)
    result = train(config, tmp_path / "run")
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    again, _ = tuned_run(tmp_path / "run", "final")
    assert replayed.weights.digest() == again.weights.digest() == result.final_weights != replayed.base
    for name, before in base.weights.tensors.items():
        after = replayed.weights.tensors[name]
        assert torch.equal(after[~masks[name]], before[~masks[name]]), name
    assert any(not torch.equal(replayed.weights.tensors[name], one) for name, one in base.weights.tensors.items())


def test_such_a_run_is_not_streamed_in_pieces(config, tmp_path, capsys):
    train(dataclasses.replace(config, steps=2), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--stream"]) == 2
    assert "a run with adapter 'sparse' cannot be streamed" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(InputError, match=r"share is .*above 0, and 1 at most"):
        Sparse(share=share)

"""A part of a tensor moves as that part of the whole tensor does, whatever is cut: law 1, for tuned weights."""

import pytest
import torch

from noback.directions import cpu_backend, philox
from noback.directions.cut import Cut, Division, joined
from noback.values import Move, Term
from noback.weights import Weights

ROWS, COLUMNS = 40, 36  # no multiple of a band's 16 rows in a half
MOVES = [Move((Term(5, 0.3), Term(9, -0.1)), 0.99), Move((Term(2**40 + 1, 1e-3),))]
POINTS = [Move((Term(5, 0.3),)), Move((Term(5, -0.3),)), Move(())]


def halves(length, parts=1):
    """The ranges of two ranks, each with its half of every one of `parts` parts."""
    each = length // parts
    return [
        tuple((part * each + rank * each // 2, part * each + (rank + 1) * each // 2) for part in range(parts))
        for rank in range(2)
    ]


CUTS = {
    "rows": [Cut((ROWS, COLUMNS), 0, ranges) for ranges in halves(ROWS)],
    "columns": [Cut((ROWS, COLUMNS), 1, ranges) for ranges in halves(COLUMNS)],
    "fused rows": [Cut((ROWS, COLUMNS), 0, ranges) for ranges in halves(ROWS, 4)],
    "fused columns": [Cut((ROWS, COLUMNS), 1, ranges) for ranges in halves(COLUMNS, 3)],
    "vector": [Cut((COLUMNS,), 0, ranges) for ranges in halves(COLUMNS)],
    "fused vector": [Cut((COLUMNS,), 0, ranges) for ranges in halves(COLUMNS, 3)],
}


@pytest.fixture(params=["compiled", "twin"])
def _sweeps(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setattr(cpu_backend, "sweeps", philox)


@pytest.mark.usefixtures("_sweeps")
@pytest.mark.parametrize("noise", ["normal", "rademacher", "rank1", "low_rank", "kept_columns"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CUTS)
def test_parts_move_and_are_perturbed_as_the_whole_is(kind, dtype, noise):
    cuts = CUTS[kind]
    start = torch.randn(cuts[0].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole, held = {"layer.weight": start.clone()}, [{"layer.weight": cut.part(start)} for cut in cuts]
    assert all(2 * part["layer.weight"].numel() == start.numel() for part in held)
    assert torch.equal(joined(cuts, [part["layer.weight"] for part in held]), start)
    alone = Weights(whole, noise)
    divided = {"layer.weight": cuts}
    ranks = [Weights(part, noise, Division(divided, rank, lambda _: ())) for rank, part in enumerate(held)]
    expected = alone.perturbed("layer.weight", POINTS)
    found = [rank.perturbed("layer.weight", POINTS) for rank in ranks]
    for point in range(len(POINTS)):
        assert torch.equal(joined(cuts, [part[point] for part in found]), expected[point])
    for weights in (alone, *ranks):
        weights.advance(MOVES)
    assert not torch.equal(whole["layer.weight"], start)
    assert torch.equal(joined(cuts, [part["layer.weight"] for part in held]), whole["layer.weight"])


def test_a_tensor_of_several_pieces_is_never_perturbed_together_with_others():
    cut = CUTS["fused vector"][0]
    tensors = {"fused": cut.part(torch.zeros(cut.shape)), "one": torch.zeros(8), "two": torch.zeros(8)}
    groups = Weights(tensors, "normal", Division({"fused": [cut]}, 0, lambda _: ())).groups(["one", "fused", "two"], 2)
    assert "fused" not in {name for group in groups.values() for name in group}

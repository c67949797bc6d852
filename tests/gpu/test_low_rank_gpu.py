"""Low-rank directions on a CUDA GPU: the CPU's bits, its scores, and groups of examples in one captured forward."""

import pytest
import torch

from noback.directions import KeptColumns, LowRank, Rank1
from noback.engines import Local
from noback.folder import RunFolder
from noback.run import Run
from noback.values import Move, Term
from noback.weights import DTYPES, Weights
from tests.gpu.test_gpu import MIXED, OTHER_SEED, PAIR, SEED, UNEVEN, both_sides, config, full_rows, pairs, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
if torch.cuda.is_available():
    from noback.directions import ranked_triton
    from noback.engines.cuda.branch_triton import branch

LOW_RANK = {"rank1": Rank1(), "low_rank": LowRank(4), "an odd rank": LowRank(3), "kept": KeptColumns(2, 3)}


@pytest.mark.parametrize("noise", LOW_RANK.values(), ids=LOW_RANK)
class TestLowRank:
    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @pytest.mark.parametrize("points", [PAIR, MIXED, UNEVEN], ids=["pair", "mixed", "uneven"])
    def test_products_have_the_bits_of_the_cpu(self, dtype, noise, points):
        here, there = pairs(dtype, noise)
        for name in here.names:
            rows = torch.arange(0, len(here.tensors[name]), 3)
            for chosen, only in ((None, None), (rows, None), (None, 0), (rows, len(points) - 1)):
                expected = here.products(name, points, chosen, only)
                found = there.products(name, points, None if chosen is None else chosen.cuda(), only)
                assert (found is None) is (expected is None)
                for ours, theirs in zip(found or (), expected or (), strict=True):
                    assert torch.equal(ours.cpu(), theirs)

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_points_after_points_and_moves_of_the_same_order_have_their_own_signs(self, dtype, noise):
        """What is drawn for points stays in one memory, which moves and other points must not leave stale."""
        here, there = pairs(dtype, noise)
        for step in range(5):
            for name in ("layer.0.weight", "layer.2.weight"):
                expected = here.perturbed(name, both_sides(SEED + step % 3, 1e-2))
                assert torch.equal(there.perturbed(name, both_sides(SEED + step % 3, 1e-2)).cpu(), expected)
            here.advance(both_sides(step, 1e-3))
            there.advance(both_sides(step, 1e-3))
        assert there.digest() == here.digest()

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @pytest.mark.parametrize("scratch", [2**26, 4096])
    def test_a_move_of_many_directions_leads_to_the_bits_of_the_cpu(self, noise, scratch, dtype, monkeypatch):
        monkeypatch.setattr(ranked_triton, "_SCRATCH", scratch)  # so that the matrices are swept a few at a time
        made = {**tensors(dtype), "wide": torch.full((37, 1056), 0.01, dtype=dtype)}  # whole tiles, and edges
        here, there = Weights(made, noise), Weights({name: tensor.cuda() for name, tensor in made.items()}, noise)
        moves = [Move(tuple(Term(7 * step + seed, 1e-4 * seed) for seed in range(64)), 0.99) for step in range(3)]
        for some in (moves, moves[:1], moves[1:2], moves[2:]):  # together, plainly, captured, replayed
            here.advance(some)
            there.advance(some)
            assert there.digest() == here.digest()

    def test_weights_that_are_no_numbers_stay_so(self, noise):
        made = torch.full((64, 512), 0.02).bfloat16()
        made[3, 5], made[8, 100], made[60, 511] = float("nan"), float("inf"), float("-inf")
        here, there = Weights({"w": made.clone()}, noise), Weights({"w": made.cuda()}, noise)
        for weights in (here, there):
            weights.advance([Move((Term(1, 1e-4),))])
        ours, theirs = there.tensors["w"].cpu(), here.tensors["w"]
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours[~ours.isnan()], theirs[~theirs.isnan()])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_scores_are_those_of_the_cpu_plainly_captured_and_replayed(self, noise, dtype):
        scores, seeds = {}, (SEED, OTHER_SEED, SEED, 5)
        for device in ("cpu", "cuda"):
            said = []
            run = Run(config(device=device, dtype=dtype, noise=noise), RunFolder("."))
            engine = Local(run.model, run.weights, run.task.word_ids, say=said.append)
            before = run.weights.digest()
            scores[device] = [engine.score(full_rows(24), both_sides(seed, 1e-2)) for seed in seeds]
            assert run.weights.digest() == before
            assert not [one for one in said if "side by side" in one]
        assert engine.runner.captured()
        allowed = 2e-4 if dtype == "float32" else 2e-1  # two devices round activations to 8 bits apart; 0.11 was seen
        for one, other in zip(scores["cpu"], scores["cuda"], strict=True):
            for at_one, at_other in zip(one, other, strict=True):
                assert torch.allclose(at_one, at_other, atol=allowed, rtol=allowed)
        plain, _, captured, _ = scores["cuda"]
        assert all(map(torch.equal, plain, captured))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("size", [1, 2])
    def test_groups_in_one_captured_forward_score_as_on_the_cpu(self, noise, dtype, size):
        batch, scores = full_rows(24), {}
        groups = [slice(first, first + size) for first in range(0, len(batch), size)]
        for device in ("cpu", "cuda"):
            said = []
            run = Run(config(device=device, dtype=dtype, noise=noise), RunFolder("."))
            engine = Local(run.model, run.weights, run.task.word_ids, say=said.append)
            scores[device] = [
                engine.score_groups(batch, groups, [both_sides(seed + group, 1e-2) for group in range(len(groups))])
                for seed in (SEED, 9, SEED, 5)
            ]
            assert not [one for one in said if "side by side" in one]
        assert engine.runner.captured()
        allowed = 2e-4 if dtype == "float32" else 2e-1  # two devices round activations to 8 bits apart; 0.11 was seen
        for one, other in zip(scores["cpu"], scores["cuda"], strict=True):
            for of_one, of_other in zip(one, other, strict=True):
                for at_one, at_other in zip(of_one, of_other, strict=True):
                    assert torch.allclose(at_one, at_other, atol=allowed, rtol=allowed)
        plain, _, captured, _ = scores["cuda"]
        for of_plain, of_captured in zip(plain, captured, strict=True):
            assert all(map(torch.equal, of_plain, of_captured))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(48, 1024, 4096), (1, 1024, 64), (3, 40, 1500), (17, 5120, 5120)]
)
def test_a_branch_of_all_probes_is_that_of_each(dtype, rows, inputs, outputs):
    made = torch.Generator(device="cuda").manual_seed(0)
    x, wide = (
        torch.randn(shape, generator=made, device="cuda").to(dtype) for shape in ((5, rows, inputs), (5, outputs + 16))
    )
    of_inputs = torch.randn((5, 1, inputs), generator=made, device="cuda").sign()
    of_outputs = 1e-2 * torch.randn((5, 1, outputs), generator=made, device="cuda")
    for bias in (None, wide[:, None, 16:], wide[0, 16:].expand(5, 1, -1)):
        expected = (x.float() * of_inputs).sum(-1, keepdim=True) * of_outputs
        expected += 0 if bias is None else bias.float()
        allowed = 1e-4 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(branch(x, of_inputs, of_outputs, bias).float(), expected, atol=allowed, rtol=allowed)

"""What holds on a CUDA GPU: the CPU's bits, the CPU's scores, and captured forwards that give what plain ones give."""

import dataclasses

import pytest
import torch

from noback import LocalEngine
from noback.adapters import Full, Lora, Prefix
from noback.config import RunConfig
from noback.directions import FAMILIES, Place, backend
from noback.directions.cpu_backend import sweeps, tensor_array
from noback.engines import open_model
from noback.estimators import TwoSided, estimate, run_search
from noback.folder import RunFolder
from noback.measuring import advance
from noback.mezo import MeZO
from noback.rules import Sgd, move_of
from noback.run import Run
from noback.tasks import Batch
from noback.training import resume, train
from noback.tuned import tuned_run
from noback.values import UNPERTURBED, Move, Term
from noback.weights import DTYPES, Weights
from tests.conftest import tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
if torch.cuda.is_available():
    from torch.nn.functional import scaled_dot_product_attention

    from noback.engines.attention import own_attention
    from noback.engines.cuda import attention_triton
    from noback.engines.cuda.attention import short_rows
    from noback.engines.cuda.attention_triton import attention, can_attend
    from noback.engines.cuda.norm_triton import layer_norm
    from noback.engines.trust import Trust

SEED, OTHER_SEED = 0x123456789ABCDEF0, 0xFFFFFFFFFFFFFFF1
PAIR = [Move((Term(SEED, 1e-3),)), Move((Term(SEED, -1e-3),))]
UNEVEN = [Move((Term(SEED, 1e-3),)), Move((Term(SEED, 2e-3),))]  # one seed, and not the two sides of a point
MIXED = [Move((Term(SEED, 1e-3), Term(OTHER_SEED, -2e-3))), UNPERTURBED, Move((Term(OTHER_SEED, 0.5),))]
MOVES = [Move((Term(SEED, 1e-3), Term(OTHER_SEED, 2e-4)), 0.99), Move((Term(7, -1e-2),)), Move((), 0.9)]


def tensors(dtype):
    """Shapes of every kind: wide, narrow, a vector, an odd height, a single row."""
    shapes = [(40, 128), (33, 192), (50,), (7, 20), (130, 64), (1, 256), (1000, 8), (3, 4, 5)]
    made = torch.Generator().manual_seed(0)
    return {
        f"layer.{index}.{'bias' if index % 2 else 'weight'}": (torch.randn(shape, generator=made) * 0.02).to(dtype)
        for index, shape in enumerate(shapes)
    }


def pairs(dtype, noise):
    """The same weights on the CPU and on the GPU."""
    made = tensors(dtype)
    return Weights(made, noise), Weights({name: tensor.cuda() for name, tensor in made.items()}, noise)


def both_sides(seed, eps):
    return [Move((Term(seed, side * eps),)) for side in (1.0, -1.0)]


def config(**options):
    """A short run of the embedded model."""
    return RunConfig(**{"steps": 4, "batch": 8, "test_limit": 20, "eval_every": 4, **options})


@pytest.mark.parametrize("noise", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
class TestBits:
    def test_triton_runs_here(self, dtype, noise):
        assert backend.why_no_triton() is None

    @pytest.mark.parametrize(
        "points", [PAIR, UNEVEN, MIXED, PAIR * 2, PAIR[:1]], ids=["pair", "uneven", "mixed", "two", "one"]
    )
    def test_a_perturbed_tensor_has_the_bits_of_the_cpu(self, dtype, noise, points):
        here, there = pairs(dtype, noise)
        for name in here.names:
            expected = here.perturbed(name, points)
            assert torch.equal(there.perturbed(name, points).cpu(), expected)
            for index in range(len(points)):
                assert torch.equal(there.perturbed(name, points, only=index).cpu()[0], expected[index])
        for name, value in there.small(points).items():
            assert torch.equal(value.cpu(), here.perturbed(name, points))

    @pytest.mark.parametrize("points", [PAIR, UNEVEN, MIXED, PAIR * 2], ids=["pair", "uneven", "mixed", "two"])
    def test_matrices_that_are_perturbed_together_have_the_bits_of_the_cpu(self, dtype, noise, points):
        shapes = {"a": (48, 256), "b": (16, 128), "c": (64, 384), "d": (40, 256), "e": (16, 512)}
        made = torch.Generator().manual_seed(2)
        here = Weights({name: torch.randn(shape, generator=made).to(dtype) for name, shape in shapes.items()}, noise)
        there = Weights({name: tensor.cuda() for name, tensor in here.tensors.items()}, noise)
        groups = there.groups(["e", "b", "d", "c", "a"], len(points))
        if there.family.rank:  # whose matrices are formed one by one, where they are formed at all
            assert groups == {}
            return
        assert groups == {"e": ("e", "b"), "b": ("e", "b"), "c": ("c", "a"), "a": ("c", "a")}  # d has half a tile
        for group in set(groups.values()):
            for name, value in there.perturbed_together(group, points).items():
                assert torch.equal(value.cpu(), here.perturbed(name, points))

    def test_a_cut_has_the_bits_of_its_place_in_the_whole(self, dtype, noise):
        family, whole = FAMILIES[noise], torch.randn(70, 320, generator=torch.Generator().manual_seed(3)).to(dtype)
        expected = torch.empty((2, 70, 320), dtype=dtype)
        sweeps.perturb([(tensor_array(expected), tensor_array(whole), Place(5, 320))], family, PAIR)
        for row, column in ((0, 64), (16, 0), (7, 128), (33, 16), (5, 12)):
            cut = whole[row:, column:].contiguous().cuda()
            part = backend.Part(cut, Place(5, 320, row, column), decayed=True)
            there = backend.backend_for({"cut": part}, family)
            assert torch.equal(there.perturb("cut", PAIR).cpu(), expected[:, row:, column:])
            moved = whole.clone()
            backend.backend_for({"all": backend.Part(moved, Place(5, 320), decayed=True)}, family).advance(MOVES)
            there.advance(MOVES)
            assert torch.equal(cut.cpu(), moved[row:, column:])

    def test_looked_up_rows_have_the_bits_of_the_cpu(self, dtype, noise):
        here, there = pairs(dtype, noise)
        ids = torch.randint(0, 33, (6, 5), generator=torch.Generator().manual_seed(1))
        expected = here.looked_up("layer.1.bias", MIXED, ids)
        assert torch.equal(there.looked_up("layer.1.bias", MIXED, ids.cuda()).cpu(), expected)
        rows = torch.tensor([0, 3, 17, 32])
        expected = here.perturbed("layer.1.bias", PAIR, rows)
        assert torch.equal(there.perturbed("layer.1.bias", PAIR, rows.cuda()).cpu(), expected)

    @pytest.mark.parametrize("moves", [MOVES, MOVES[1:2]], ids=["three", "one"])
    def test_moves_lead_to_the_bits_of_the_cpu(self, dtype, noise, moves):
        here, there = pairs(dtype, noise)
        here.advance(moves)
        there.advance(moves)
        assert there.digest() == here.digest()

    def test_steps_one_after_the_other_lead_to_the_bits_of_the_cpu(self, dtype, noise):
        here, there = pairs(dtype, noise)
        for step in range(4):  # plain, captured, replayed
            for decay in (1.0, 0.9):
                for terms in ((Term(step, 1e-3 * step),), (Term(SEED + step, 1e-3), Term(step, -2e-3))):
                    here.advance([Move(terms, decay)])
                    there.advance([Move(terms, decay)])
                    assert there.digest() == here.digest()

    def test_a_move_worked_out_on_the_gpu_leads_to_the_bits_of_the_cpu(self, dtype, noise):
        """Losses become slopes, coefficients and folded tables there; plainly, captured, and after moves from here."""
        here, there = pairs(dtype, noise)
        estimator, made = TwoSided(eps=3e-4), torch.Generator().manual_seed(0)
        for step in range(9):
            seeds = (SEED + step, step)[: 1 + step % 2]
            losses = 0.7 + 1e-4 * torch.randn(2 * len(seeds), generator=made, dtype=torch.float64)
            rule = Sgd(lr=1e-3, weight_decay=step % 3, schedule="linear")
            move = move_of(rule, step, 70, [estimate(estimator, seeds, lambda _, losses=losses: losses.tolist())])
            here.advance([move])
            if step == 5:  # one of the host's own in between
                there.advance([move])
            else:
                found = run_search(estimator, seeds, lambda _, losses=losses: losses.cuda())
                advance(there, rule, step, 70, [(seeds, found.slopes.float().double())])
            assert there.digest() == here.digest()

    @pytest.mark.parametrize("terms", [0, 1, 2, 5, 20])
    def test_a_move_of_any_number_of_terms_worked_out_on_the_gpu(self, dtype, noise, terms):
        """Momentum: terms of earlier steps and of this one. Plainly, captured, replayed."""
        here, there = pairs(dtype, noise)
        for step in range(4):
            coefficients = torch.linspace(-1e-3, 2e-3, terms, dtype=torch.float64) * (step + 1)
            seeds = [SEED + step + term for term in range(terms)]
            here.advance_along(seeds, coefficients, 0.99)
            there.advance_along(seeds, coefficients.cuda(), 0.99)
            assert there.digest() == here.digest()

    def test_a_gpu_without_triton_gives_the_same_bits(self, dtype, noise, monkeypatch):
        here, there = pairs(dtype, noise)
        monkeypatch.setattr(backend, "why_no_triton", lambda: "it is missing")
        for name in here.names:
            assert torch.equal(there.perturbed(name, MIXED).cpu(), here.perturbed(name, MIXED))
        ids = torch.randint(0, 33, (6, 5), generator=torch.Generator().manual_seed(1))
        expected = here.looked_up("layer.1.bias", MIXED, ids)
        assert torch.equal(there.looked_up("layer.1.bias", MIXED, ids.cuda()).cpu(), expected)
        here.advance(MOVES)
        there.advance(MOVES)
        assert there.digest() == here.digest()

    def test_every_tensor_of_the_embedded_model_has_the_bits_of_the_cpu(self, dtype, noise):
        run = Run(config(device="cpu", dtype=next(k for k, v in DTYPES.items() if v is dtype)), RunFolder("."))
        here = Weights(dict(run.weights.tensors), noise)
        there = Weights({name: tensor.cuda() for name, tensor in here.tensors.items()}, noise)
        for name in here.names:
            assert torch.equal(there.perturbed(name, PAIR).cpu(), here.perturbed(name, PAIR))
        here.advance(MOVES)
        there.advance(MOVES)
        assert there.digest() == here.digest()


@pytest.mark.parametrize("adapter", [Full(), Prefix()], ids=["full", "prefix"])
class TestScores:
    def test_scores_are_those_of_the_cpu_and_leave_no_trace(self, adapter):
        scores, start, points = {}, {}, both_sides(SEED, 1e-2)
        for device in ("cpu", "cuda"):
            run = Run(config(device=device, adapter=adapter), RunFolder("."))
            if start:  # a prefix begins with activations, which differ in their last bits
                run.weights.load(start)
            start = {name: tensor.cpu().clone() for name, tensor in run.weights.tensors.items()}
            run.task.use(drawn(run))
            before = run.weights.digest()
            scores[device] = [run.engine.score(run.batch(step), points) for step in range(4)]
            assert run.weights.digest() == before
            assert not run.engine.point_by_point
        for one, other in zip(scores["cpu"], scores["cuda"], strict=True):
            for at_one, at_other in zip(one, other, strict=True):
                assert torch.allclose(at_one, at_other, atol=2e-4)

    def test_rounded_products_do_not_part_the_probes(self, adapter):
        run = Run(
            config(device="cuda", adapter=adapter, engine=LocalEngine(matmul_precision="tf32"), batch=64),
            RunFolder("."),
        )
        run.task.use(drawn(run))
        run.engine.score(run.batch(0), both_sides(SEED, 1e-3))
        assert not run.engine.point_by_point

    def test_the_first_layers_of_a_captured_forward_start_while_the_rest_is_launched(self, adapter):
        run = Run(config(device="cuda", adapter=adapter), RunFolder("."))
        run.task.use(drawn(run))
        for seed in (1, 2, 3):
            run.engine.score(run.batch(0), both_sides(seed, 1e-2))
        assert run.engine.runner.captured() == ((2 if isinstance(adapter, Full) else 1),)

    def test_a_captured_forward_gives_what_a_plain_one_gives(self, adapter):
        run = Run(config(device="cuda", adapter=adapter), RunFolder("."))
        run.task.use(drawn(run))
        batch, estimator = run.batch(0), TwoSided(eps=1e-2)
        first = run.engine.score(batch, both_sides(SEED, estimator.eps))
        for seed in (OTHER_SEED, SEED, 5):
            captured = run.engine.score(batch, both_sides(seed, estimator.eps))
        assert run.engine.runner.refused() is None
        assert run.engine.runner.captured()
        assert run._next[0] == 1  # the next batch was made while the GPU worked
        again = run.engine.score(batch, both_sides(SEED, estimator.eps))
        for one, other in zip(first, again, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
        assert not torch.allclose(captured[0], again[0], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("width", "biased"), [(64, True), (100, True), (1024, True), (1024, False), (5120, True)])
def test_a_norm_of_all_probes_is_that_of_each(dtype, width, biased):
    made = torch.Generator(device="cuda").manual_seed(0)
    rows, scale, shift = (
        torch.randn(shape, generator=made, device="cuda").to(dtype) for shape in ((6, 7, width), (3, width), (3, width))
    )
    found = layer_norm(rows, scale, shift if biased else None, 1e-5)
    for probe, part in enumerate(rows.chunk(3)):
        expected = torch.nn.functional.layer_norm(part, [width], scale[probe], shift[probe] if biased else None, 1e-5)
        allowed = 1e-5 if dtype is torch.float32 else 2e-2
        assert torch.allclose(found[2 * probe : 2 * probe + 2], expected, atol=allowed, rtol=allowed)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("heads", "tokens", "width"), [(16, 48, 64), (3, 5, 16), (2, 17, 32), (2, 64, 64), (1, 33, 128)]
)
def test_attention_over_short_rows_is_torchs(dtype, heads, tokens, width):
    made = torch.Generator(device="cuda").manual_seed(0)
    mixed = torch.randn((4, tokens, 3, heads, width), generator=made, device="cuda")
    exact = [part.transpose(1, 2) for part in mixed.unbind(2)]
    given = [part.transpose(1, 2) for part in mixed.to(dtype).unbind(2)]
    seen = torch.rand((4, 1, 1, tokens), generator=made, device="cuda") > 0.3
    seen[..., 0] = True
    mask = torch.zeros((4, 1, tokens, tokens), dtype=dtype, device="cuda").masked_fill_(~seen, float("-inf"))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for chosen, causal in ((None, False), (None, True), (mask, False), (mask[:1], False)):
            assert can_attend(*given, chosen)
            found = attention(*given, chosen, scale=width**-0.5, causal=causal)
            exact_mask = None if chosen is None else chosen.float()
            expected = scaled_dot_product_attention(*exact, attn_mask=exact_mask, is_causal=causal)
            torch.testing.assert_close(found.float(), expected, atol=3e-2, rtol=3e-2)
            assert found.transpose(1, 2).is_contiguous()
    finally:
        torch.set_float32_matmul_precision(before)
    assert can_attend(*given, None) is (dtype is torch.bfloat16)  # float32 as it is stays torch's


def test_short_rows_within_a_forward_go_to_the_kernel(monkeypatch):
    """A mask of yes and no of each head, a token that sees nothing, and rows that are too long for the kernel."""
    ran = []
    monkeypatch.setattr(
        attention_triton, "attention", lambda *args, **kwargs: (ran.append(1), attention(*args, **kwargs))[1]
    )
    for tokens, runs in ((40, True), (80, False)):
        made = torch.Generator(device="cuda").manual_seed(0)
        given = [torch.randn((4, 2, tokens, 64), generator=made, device="cuda").bfloat16() for _ in range(3)]
        seen = torch.rand((4, 2, tokens, tokens), generator=made, device="cuda") > 0.3
        seen[..., 0] = True
        seen[0, 0, 3] = not runs  # as PyTorch's way for a token that sees nothing differs between its kernels
        ran.clear()
        own = own_attention(open_model("mini", "bfloat16").model).function
        mask = torch.zeros(seen.shape, dtype=torch.bfloat16, device="cuda").masked_fill_(~seen, float("-inf"))
        found = short_rows(own, Trust(pytest.fail))(None, *given, mask)[0].transpose(1, 2)
        assert bool(ran) is runs
        expected = scaled_dot_product_attention(*(part.float() for part in given), attn_mask=seen)
        if runs:
            assert bool((found[0, 0, 3] == 0).all())
            found[0, 0, 3] = expected[0, 0, 3] = 0
        torch.testing.assert_close(found.float(), expected, atol=3e-2, rtol=3e-2)


def test_a_captured_forward_goes_to_the_kernel_too(monkeypatch, tmp_path):
    """Its rows may have had no mask when it ran plainly, and are given one when it is captured."""
    captured = []

    def seen(*args, **kwargs):
        captured.append(torch.cuda.is_current_stream_capturing())
        return attention(*args, **kwargs)

    monkeypatch.setattr(attention_triton, "attention", seen)
    run = Run(config(device="cuda", dtype="bfloat16"), RunFolder(tmp_path))
    for seed in (SEED, OTHER_SEED, 7):
        run.engine.score(full_rows(24), both_sides(seed, 1e-3))
    assert True in captured
    assert run.engine.runner.refused() is None
    assert run.engine.runner.captured()


def full_rows(tokens):
    """A batch without padding."""
    ids = torch.randint(5, 1000, (8, tokens), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Batch(inputs, torch.full((8,), 3), torch.zeros(8, dtype=torch.long))


def drawn(run):
    from noback.run import drawn_data

    return drawn_data(run.config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adapter", [Full(), Prefix(), Lora()], ids=["full", "prefix", "lora"])
@pytest.mark.parametrize("made_on", ["cpu", "cuda"])
def test_a_journal_made_on_one_device_replays_on_the_other_to_the_same_bits(tmp_path, made_on, adapter, dtype):
    if isinstance(adapter, Lora):
        pytest.importorskip("peft")
    result = train(config(device=made_on, adapter=adapter, dtype=dtype), tmp_path / "run")
    for device in ("cpu", "cuda"):
        run, _ = tuned_run(tmp_path / "run", "final", device=device, snapshots=False)
        assert run.weights.digest() == result.final_weights


def test_a_run_is_resumed_on_another_device(tmp_path):
    from noback.training import Interrupted

    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train(config(device="cuda"), tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run", device="cpu").steps == 4


def test_a_model_that_is_cast_on_the_gpu_between_steps_goes_on():
    model = tiny_model("roberta").to("cuda")
    optimizer = MeZO(model, lr=1e-4, eps=1e-2)
    ids = torch.randint(10, 50, (4, 8), device="cuda")

    def loss():
        return model(input_ids=ids).logits.float().logsumexp(-1).mean()

    optimizer.step(loss)
    model.to(torch.bfloat16)
    before = optimizer.digest()
    optimizer.step(loss)
    assert optimizer.digest() != before


def test_a_gpu_that_is_not_there_is_refused():
    from noback.errors import InputError

    with pytest.raises(InputError, match="sees 1 GPU"):
        Run(config(device="cuda:7"), RunFolder("."))


def test_a_default_run_goes_to_the_gpu():
    assert Run(dataclasses.replace(config(), device=None), RunFolder(".")).device.type == "cuda"

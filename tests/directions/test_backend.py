"""The sweeps over tensors, as weights and engines use them."""

import sys
from types import SimpleNamespace

import pytest
import torch

from noback.directions import Normal, Place, Rank1, backend
from noback.directions.backend import Part, backend_for
from noback.directions.cpu_backend import CpuBackend
from noback.values import Move, Term
from noback.weights import Weights
from tests.conftest import tiny_model, weights_of

POINTS = [Move((Term(1, 1e-2),)), Move((Term(1, -1e-2),)), Move((Term(2, 0.5), Term(1, 1e-3)))]


def test_one_backend_serves_until_the_weights_move():
    layer = torch.nn.Linear(5, 4)
    weights = Weights(dict(layer.named_parameters()))
    first = weights.place(POINTS)
    assert first.order(POINTS) == tuple(POINTS)  # a CPU: nothing is brought anywhere
    weights.look()
    weights.advance(POINTS[:1])
    assert weights.place(POINTS[:1]) is first
    layer.to(torch.bfloat16)
    weights.look()
    assert weights.place(POINTS) is not first
    assert weights.perturbed("weight", POINTS).dtype == torch.bfloat16


def test_a_cast_model_is_perturbed_and_moved_where_it_is_now():
    layer, other = torch.nn.Linear(5, 4), torch.nn.Linear(5, 4)
    other.load_state_dict(layer.state_dict())
    weights = Weights(dict(layer.named_parameters()))
    weights.perturbed("weight", POINTS)
    layer.to(torch.bfloat16)
    cast = Weights(dict(other.to(torch.bfloat16).named_parameters()))
    assert torch.equal(weights.perturbed("weight", POINTS), cast.perturbed("weight", POINTS))
    weights.advance(POINTS)
    cast.advance(POINTS)
    assert weights.digest() == cast.digest()
    assert torch.equal(layer.weight, other.weight)


def test_points_of_a_cpu_are_their_own_order():
    backend = weights_of(tiny_model("bert", vocab=50)).place(POINTS)
    assert backend.order(POINTS) == backend.order(list(POINTS)) != backend.order(POINTS[:2])


def test_a_cpu_has_no_tensors_that_go_best_all_together():
    assert weights_of(tiny_model("bert", vocab=50)).small(POINTS) == {}


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", [0, 1, 2, 7])
def test_a_move_along_directions_is_the_move_of_those_terms_in_their_order(terms, dtype, decay):
    one, other = (weights_of(tiny_model("bert", vocab=50, dtype=dtype)) for _ in range(2))
    before = one.digest()
    seeds, coefficients = list(range(50, 50 - terms, -1)), torch.linspace(-1e-2, 2e-2, terms, dtype=torch.float64)
    one.advance_along(seeds, coefficients, decay)
    other.advance([Move(tuple(map(Term, seeds, coefficients.tolist())), decay)])
    assert one.digest() == other.digest()
    assert (one.digest() == before) == (terms == 0 and decay == 1.0)


def test_as_many_coefficients_as_directions_are_expected():
    weights = weights_of(tiny_model("bert", vocab=50))
    with pytest.raises(ValueError, match="2 seeds and coefficients of shape"):
        weights.advance_along([1, 2], torch.zeros(3, dtype=torch.float64), 1.0)


def test_looked_up_rows_are_those_of_the_perturbed_tensor():
    weights = Weights({"w": torch.randn(33, 6, generator=torch.Generator().manual_seed(0))})
    ids = torch.tensor([[3, 0, 32], [3, 3, 7], [1, 2, 3]])
    whole = weights.perturbed("w", POINTS)
    found = weights.looked_up("w", POINTS, ids)
    assert torch.equal(found, torch.stack([whole[point][rows] for point, rows in enumerate(ids)]))
    assert torch.equal(weights.looked_up("w", POINTS, ids[1], only=1), whole[1][ids[1]])
    with pytest.raises(IndexError, match="rows 3 to 33 of 'w', which has 33"):
        weights.perturbed("w", POINTS, torch.tensor([3, 33]))


def test_a_cut_has_the_bits_of_its_place_in_the_whole():
    whole = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    expected = backend_for({"w": Part(whole, Place(5, 30), decayed=True)}, Weights({"w": whole}).family)
    part = Part(whole[7:, 4:].contiguous(), Place(5, 30, 7, 4), decayed=True)
    found = backend_for({"w": part}, Weights({"w": whole}).family)
    assert torch.equal(found.perturb("w", POINTS), expected.perturb("w", POINTS)[:, 7:, 4:])


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU: its values are at hand only in a copy."""

    is_cuda = True

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()

    def numpy(self):
        raise TypeError("it is on a GPU")


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_tensors_elsewhere_are_fetched_and_brought_back(decay):
    made = {"w.weight": torch.randn(20, 6), "w.bias": torch.randn(9)}
    noise = Weights(made).family
    here, there = (
        {name: Part(kind(tensor.clone()), Place(3, tensor.numel() // len(tensor)), "bias" not in name)
         for name, tensor in made.items()}
        for kind in (torch.Tensor, lambda tensor: tensor.as_subclass(Elsewhere))
    )  # fmt: skip
    one, other = CpuBackend(here, noise), CpuBackend(there, noise)
    assert torch.equal(one.perturb("w.weight", POINTS), other.perturb("w.weight", POINTS))
    moves = [Move(point.terms, decay) for point in POINTS]
    one.advance(moves)
    other.advance(moves)
    for name, tensor in made.items():
        assert torch.equal(here[name].tensor, there[name].tensor.cpu())
        assert not torch.equal(here[name].tensor, tensor)


@pytest.mark.parametrize("problem", [None, "it is missing"])
def test_a_gpu_is_served_by_triton_where_that_runs(problem, monkeypatch):
    stand_in = SimpleNamespace(TritonBackend=lambda parts, noise: ("triton", parts, noise))
    monkeypatch.setitem(sys.modules, "noback.directions.philox_triton", stand_in)
    monkeypatch.setattr(backend, "why_no_triton", lambda: problem)
    on_gpu = {"w": Part(torch.zeros(4, 5).as_subclass(Elsewhere), Place(1, 5), decayed=True)}
    found = backend_for(on_gpu, Normal())
    assert isinstance(found, CpuBackend) if problem else found == ("triton", on_gpu, Normal())
    assert isinstance(backend_for(on_gpu, Rank1()), CpuBackend) is bool(problem)
    on_cpu = {"w": Part(torch.zeros(4, 5), Place(1, 5), decayed=True)}
    assert isinstance(backend_for(on_cpu, Normal()), CpuBackend)

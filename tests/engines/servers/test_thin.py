"""A model's own linears tuned over servers: each point is an adapter beside weights that are sent every so often."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noback import Full, Lora, RunConfig, SglangEngine, TwoSided, VllmEngine, evaluate, tuned_run
from noback.directions import LowRank
from noback.engines import open_model
from noback.engines.servers.checking import check
from noback.engines.servers.server import Limits
from noback.engines.servers.thin import ThinCopies
from noback.errors import InputError
from noback.journal import read_journal
from noback.run import Run, drawn_data
from noback.training import Interrupted, resume, train
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import tiny_causal
from tests.engines.servers.stand_in import StandIn

LINEARS = Full(tune="linears")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    place = tmp_path_factory.mktemp("served") / "model"
    tiny_causal("llama").save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def server(folder, monkeypatch):
    model = open_model(str(folder), "float32", causal=True).model
    found = StandIn(model, model=str(folder), lora=Limits(3, 8, None))
    monkeypatch.setattr(SglangEngine, "servers", lambda self: [found])
    return found


def config(folder, **options):
    return RunConfig(**{
        "model": str(folder), "task": "reviews-causal", "steps": 7, "batch": 4, "test_limit": 8, "eval_every": 7,
        "estimator": TwoSided(eps=1e-2), "adapter": LINEARS, "noise": "rank1", "engine": SglangEngine(), "shots": 4,
        **options,
    })  # fmt: skip


def slopes(folder):
    return torch.tensor([step.slopes for step in read_journal(folder / "journal").steps])


def thin(noise="rank1"):
    """A tiny model's linears, and what gives their adapters."""
    model = tiny_causal("llama")
    weights = Weights(LINEARS.attach(model, (), 0), noise)
    return model, weights, ThinCopies(model, weights)


def displaced(base, found):
    """The linears that a server has at a point."""
    scale = found.config["lora_alpha"] / found.config["r"]
    sides = {
        name: [found.tensors[f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"] for side in "BA"]
        for name in base.tensors
    }
    return {name: tensor + scale * (sides[name][0] @ sides[name][1]) for name, tensor in base.tensors.items()}


@pytest.mark.parametrize("noise", ["rank1", LowRank(rank=3)])
def test_an_adapter_holds_the_moves_since_the_base_and_the_point_itself(noise):
    _, weights, copies = thin(noise)
    base = copies.base([UNPERTURBED], 64)
    weights.advance([Move((Term(3, 0.01), Term(4, -0.02))), Move((Term(5, 0.03),))])
    for point in (UNPERTURBED, Move((Term(6, 0.05),))):
        assert copies.base([point], 64) is base
        found = displaced(base, copies.copy(point))
        for name in weights.names:
            torch.testing.assert_close(found[name], weights.perturbed(name, [point])[0], atol=1e-6, rtol=0)
    assert copies.copy(point).config["r"] == 4 * weights.family.rank


def test_linears_are_sent_again_when_an_adapter_would_have_more_than_the_servers_rank():
    _, weights, copies = thin()
    point, bases = Move((Term(6, 0.05),)), []
    for step in range(7):
        base = copies.base([point, UNPERTURBED], 3)
        assert copies.copy(point).config["r"] <= 3
        bases.append(base.number)
        weights.advance([Move((Term(step, 0.01),))])
    assert bases == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("write", ["decay", "load"])
def test_linears_are_sent_again_after_what_is_no_sum_of_products(write):
    _, weights, copies = thin()
    first = copies.base([UNPERTURBED], 64)
    if write == "decay":
        weights.advance([Move((Term(3, 0.01),), 0.9)])
    else:
        weights.load({name: tensor * 2 for name, tensor in weights.tensors.items()})
    second = copies.base([UNPERTURBED], 64)
    assert second.number != first.number
    assert all(torch.equal(second.tensors[name], tensor) for name, tensor in weights.tensors.items())


def test_a_run_has_the_slopes_of_a_local_one_and_the_server_its_own_weights_afterwards(server, folder, tmp_path):
    there = train(config(folder), tmp_path / "there")
    here = train(config(folder, engine="local"), tmp_path / "here")
    ours, theirs = slopes(tmp_path / "there"), slopes(tmp_path / "here")
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()
    assert len(server.bases) == 4, server.bases  # at the start and every third step, then its own
    assert server.bases[-1] == "own"
    assert not server.adapters
    assert there.best == here.best
    assert evaluate(tuned_run(tmp_path / "there", engine="local")[0])[0].accuracy == there.best
    assert evaluate(tuned_run(tmp_path / "here", engine="sglang")[0])[0].accuracy == here.best


def test_the_weights_as_they_stand_are_published_anew_beside_linears_that_were_sent_meanwhile(server, folder):
    run = Run(config(folder))
    run.task.use(drawn_data(run.config))
    batch, wide = run.batch(0), Move((Term(7, 0.01), Term(8, 0.01)))
    run.engine.score(batch, [UNPERTURBED])
    run.weights.advance([Move((Term(3, 0.05), Term(4, 0.05)))])
    (before,) = run.engine.score(batch, [UNPERTURBED])
    run.engine.score(batch, [wide])  # with two terms more, an adapter would have rank 4
    (after,) = run.engine.score(batch, [UNPERTURBED])
    assert len(server.bases) == 2
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    run.engine.close()


def test_a_server_that_is_started_anew_is_sent_the_linears_and_the_bits_are_the_same(server, folder, tmp_path):
    from noback.watching import Silent

    class Dying(Silent):
        def stepped(self, step, *_args, **_kwargs):
            if step == 4:
                server.dies()

    whole = train(config(folder), tmp_path / "whole")
    assert train(config(folder), tmp_path / "disturbed", watcher=Dying()).final_weights == whole.final_weights


def test_a_run_that_was_stopped_goes_on_within_rounding(server, folder, tmp_path):
    """What it goes on with was sent whole, so the same sums are rounded otherwise."""
    train(config(folder), tmp_path / "whole")
    steps = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(config(folder), tmp_path / "stopped", stop=lambda: next(steps, False))
    resume(tmp_path / "stopped")
    one, other = slopes(tmp_path / "stopped"), slopes(tmp_path / "whole")
    assert (one - other).norm() < 1e-4 * other.norm()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise": "normal"}, "--noise rank1 or low_rank"),
        ({"engine": VllmEngine()}, "adapter is 'full'; expected lora: use"),
        ({"adapter": Full()}, "no matrices of linears.*adapter.tune=linears"),
        ({"noise": LowRank(rank=4)}, "rank 3 and the run's has rank 4; .*--set noise.rank"),
    ],
)
def test_what_is_no_adapter_is_refused(server, folder, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        train(config(folder, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_server_that_holds_the_weights_of_a_killed_run_is_refused_but_by_such_a_run(server, folder, tmp_path):
    server.said = replace(server.said, weights="noback-x")
    with pytest.raises(InputError, match="weights of a run that tuned its model and was killed"):
        train(config(folder, adapter=Lora(rank=2)), tmp_path / "refused")
    train(config(folder, steps=1), tmp_path / "run")
    copies = thin()[2]
    check(server, server.said, copies.needs())

"""MeZO as an optimizer: any module, any closure."""

import dataclasses
import json
import os
import signal
import time

import pytest
import torch
from torch import nn

from noback import DamagedError, InputError, KeptColumns, MeZO, Momentum, NobackError, OneSided, Sgd
from noback.values import Move, Term
from tests.contracts.tables import ESTIMATORS, RULES


def regression(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.randn(64, 4)
    targets = inputs.sum(1, keepdim=True)
    return model, lambda: nn.functional.mse_loss(model(inputs), targets)


def test_a_loss_goes_down_without_a_gradient():
    model, closure = regression()
    optimizer = MeZO(model, lr=1e-2, eps=1e-3, directions=4)
    losses = [optimizer.step(closure) for _ in range(300)]
    assert losses[-1] < losses[0] / 5
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_closure_may_return_a_plain_number_without_any_gradient():
    model = nn.Linear(2, 1, bias=False)
    optimizer = MeZO(model, lr=0.05, eps=0.5)

    def error():
        with torch.no_grad():
            return abs(model.weight.sum().item() - 3.0)

    for _ in range(200):
        optimizer.step(error)
    assert error() < 0.5


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(4, 6, batch_first=True),
        nn.Conv1d(8, 3, 3),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        nn.MultiheadAttention(4, 2, batch_first=True),
        nn.GRUCell(4, 5),
        nn.PReLU(),
        nn.Bilinear(4, 4, 2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_every_tensor_of_a_module_is_seen_displaced_together(module):
    """At a displaced point the output equals that of a copy whose weights were moved there."""
    import copy

    from noback.weights import Weights

    inputs = torch.randn(2, 8, 4)
    arguments = {
        nn.MultiheadAttention: (inputs, inputs, inputs),
        nn.GRUCell: (inputs[:, 0],),
        nn.Bilinear: (inputs, inputs),
    }.get(type(module), (inputs,))

    def output(module):
        found = module(*arguments)
        return (found[0] if isinstance(found, tuple) else found).detach().clone()

    module.eval()
    seen = []
    optimizer = MeZO(module, lr=1e-9, eps=0.1, seed=3)
    moved = copy.deepcopy(module)
    optimizer.step(lambda: seen.append(output(module)) or 0.0)
    from noback.values import direction_seeds

    Weights(dict(moved.named_parameters())).advance([Move((Term(direction_seeds(3, 0, 1)[0], 0.1),))])
    torch.testing.assert_close(seen[0], output(moved), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(seen[0], seen[1])


def test_a_weight_that_another_module_uses_is_seen_displaced():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)

        def forward(self, ids):
            return nn.functional.linear(self.embed(ids), self.embed.weight)

    model = Tied()
    seen = []
    MeZO(model, lr=1e-9, eps=0.1).step(lambda: seen.append(model(torch.tensor([[1, 2]])).detach().clone()) or 0.0)
    gram = model.embed.weight @ model.embed.weight.T
    assert not torch.allclose(seen[0], gram[[1, 2]][None], atol=1e-3)


def test_frozen_parameters_stay():
    model, closure = regression()
    model[0].weight.requires_grad_(False)
    frozen, tuned = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    MeZO(model, lr=1e-2).step(closure)
    assert torch.equal(model[0].weight, frozen)
    assert not torch.equal(model[2].weight, tuned)


def test_a_state_goes_on_where_it_was():
    straight_model, straight_closure = regression()
    straight = MeZO(straight_model, lr=1e-2, seed=1)
    for _ in range(6):
        straight.step(straight_closure)
    model, closure = regression()
    first = MeZO(model, lr=1e-2, seed=1)
    for _ in range(3):
        first.step(closure)
    second = MeZO(model, lr=1e-2, seed=1)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.step(closure)
    assert second.steps == 6
    assert second.digest() == straight.digest()


METHODS = {
    f"{estimator}-{rule}": {
        "estimator": dataclasses.replace(ESTIMATORS[estimator].estimator, eps=1e-3),
        "rule": dataclasses.replace(RULES[rule], lr=1e-3),
    }
    for estimator in ESTIMATORS
    for rule in RULES
    if RULES[rule].schedule == "constant" and not RULES[rule].keeps_moments
}
METHODS["kept_columns"] = {"rule": Momentum(lr=1e-3, window=4), "noise": KeptColumns(period=3)}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def stepped(steps, **options):
    """A fresh model and its optimizer after some steps."""
    model, closure = regression()
    optimizer = MeZO(model, seed=1, **options)
    for _ in range(steps):
        optimizer.step(closure)
    return optimizer, model, closure


@methods
@pytest.mark.parametrize("first", [1, 5])
def test_every_method_goes_on_from_its_state(method, first):
    straight, *_ = stepped(8, **method)
    before, model, closure = stepped(first, **method)
    state = json.loads(json.dumps(before.state_dict()))  # as a checkpoint holds it
    after = MeZO(model, seed=1, **method)
    after.load_state_dict(state)
    for _ in range(8 - first):
        after.step(closure)
    assert after.digest() == straight.digest() != MeZO(regression()[0], lr=1.0).digest()


@methods
def test_every_method_goes_on_from_its_journal(method, tmp_path):
    straight, *_ = stepped(8, **method)
    stepped(5, **method, journal=tmp_path / "journal")
    after, _, closure = stepped(0, **method, journal=tmp_path / "journal")
    assert after.steps == 5
    for _ in range(3):
        after.step(closure)
    assert after.digest() == straight.digest()


def test_a_state_and_a_header_name_no_option_that_is_off():
    """Those that were written before an option was made are those that are written now."""
    assert stepped(1, rule=Momentum(lr=1e-3))[0].state_dict()["rule"] == {
        "kind": "momentum", "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant", "beta": 0.7, "window": 10,
    }  # fmt: skip
    assert "rule" not in stepped(1, lr=1e-3)[0].state_dict()


def test_momentum_does_more_than_its_last_step():
    found = {rule: stepped(3, rule=rule, lr=1e-3)[0].digest() for rule in (Momentum(), Momentum(window=1), Sgd())}
    assert len(set(found.values())) == 3


def test_an_lr_that_changes_counts_for_the_whole_of_a_move():
    optimizer, model, closure = stepped(2, rule=Momentum(lr=1e-3))
    other, other_model, other_closure = stepped(2, rule=Momentum(lr=1e-3))
    before = model[0].weight.detach().clone()
    optimizer.lr = 2e-3
    optimizer.step(closure)
    other.step(other_closure)
    torch.testing.assert_close(model[0].weight - before, 2 * (other_model[0].weight - before), atol=1e-6, rtol=1e-2)


def test_the_noise_is_the_estimators_usual_one():
    method = {"estimator": OneSided(), "lr": 1e-3}
    assert stepped(2, **method)[0].digest() == stepped(2, **method, noise="rademacher")[0].digest()
    assert stepped(2, **method)[0].digest() != stepped(2, **method, noise="normal")[0].digest()


@pytest.mark.parametrize(
    "other",
    [{"rule": Momentum()}, {"rule": Sgd(clip=3.0)}, {"estimator": OneSided(directions=2)}],
    ids=["rule", "clip", "slopes"],
)
def test_a_state_or_journal_of_another_method_is_refused(other, tmp_path):
    plain = {"lr": 1e-3, "noise": "normal", "directions": 2}
    for number, (one, two) in enumerate(((plain, plain | other), (plain | other, plain))):
        state = stepped(3, **one, journal=tmp_path / str(number))[0].state_dict()
        with pytest.raises(InputError, match="of the state is"):
            stepped(0, **two)[0].load_state_dict(state)
        with pytest.raises(DamagedError, match="with other options"):
            stepped(0, **two, journal=tmp_path / str(number))


def test_a_state_with_other_options_is_refused():
    model, _ = regression()
    state = MeZO(model, lr=1e-2, seed=1).state_dict()
    with pytest.raises(InputError, match="seed of the state is 1"):
        MeZO(model, lr=1e-2, seed=2).load_state_dict(state)


@pytest.mark.parametrize(
    "method",
    [{"lr": 1e-2}, {"rule": Momentum(lr=1e-2, window=4), "noise": KeptColumns(period=3)}],
    ids=["plain", "kept_columns"],
)
def test_a_journal_brings_a_fresh_base_model_to_where_it_was(tmp_path, method):
    model, closure = regression()
    optimizer = MeZO(model, **method, journal=tmp_path / "journal")
    for _ in range(5):
        optimizer.step(closure)
    fresh, _ = regression()
    recovered = MeZO(fresh, **method, journal=tmp_path / "journal")
    assert recovered.steps == 5
    assert recovered.digest() == optimizer.digest()


def test_a_journal_of_other_weights_or_options_is_refused(tmp_path):
    model, closure = regression()
    MeZO(model, lr=1e-2, journal=tmp_path / "journal").step(closure)
    with pytest.raises(DamagedError, match="from other weights"):
        MeZO(regression(seed=1)[0], lr=1e-2, journal=tmp_path / "journal")
    with pytest.raises(DamagedError, match="with other options"):
        MeZO(regression()[0], lr=2e-2, journal=tmp_path / "journal")


def test_a_loss_that_is_not_a_number_moves_nothing():
    model, _ = regression()
    optimizer = MeZO(model, lr=1e-2)
    before = optimizer.digest()
    with pytest.raises(NobackError, match="the loss is nan at step 0"):
        optimizer.step(lambda: float("nan"))
    assert optimizer.digest() == before


def test_a_model_cast_after_the_optimizer_was_made_is_still_the_one_that_moves():
    model, _ = regression()
    optimizer = MeZO(model, lr=1.0)
    model.bfloat16()
    before = model[2].weight.detach().clone()
    optimizer.step(lambda: model[2].weight.float().sum())
    assert not torch.equal(model[2].weight, before)


@pytest.mark.parametrize(
    "options",
    [{"lr": 0}, {"lr": 1, "seed": -1}, {"lr": 1e-3, "eps": -1}, {"lr": float("nan")}, {"lr": 1, "noise": "pink"}],
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        MeZO(nn.Linear(2, 2), **options)


@pytest.mark.parametrize("method", [{"estimator": "one_sided"}, {"estimator": OneSided}, {"rule": "momentum"}], ids=str)
def test_a_method_that_is_no_object_is_refused(method):
    with pytest.raises(InputError, match="expected an object, such as"):
        MeZO(regression()[0], lr=1e-3, **method)


def test_a_closure_that_returns_many_numbers_is_refused():
    model, _ = regression()
    with pytest.raises(InputError, match="expected one number"):
        MeZO(model, lr=1e-2).step(lambda: torch.ones(3))


def test_an_interrupt_while_the_weights_move_is_not_gone_past(tmp_path, monkeypatch):
    model, closure = regression()
    optimizer = MeZO(model, lr=1e-2, journal=tmp_path / "journal")
    optimizer.step(closure)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optimizer._weights, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(closure)
    with pytest.raises(NobackError, match="interrupted while the weights moved"):
        optimizer.step(closure)
    assert MeZO(regression()[0], lr=1e-2, journal=tmp_path / "journal").steps == 2


def test_an_id_outside_an_embedding_is_an_error_as_in_torch():
    model = nn.Embedding(4, 8)
    with pytest.raises(IndexError, match="which has 4"):
        MeZO(model, lr=1e-2).step(lambda: model(torch.tensor([1, 9])).sum())


def test_an_embedding_keeps_its_norm():
    model = nn.Embedding(4, 8, max_norm=0.5)
    seen = []
    MeZO(model, lr=1e-9, eps=1.0).step(lambda: seen.append(model(torch.tensor([1])).norm().item()) or 0.0)
    assert seen == pytest.approx([0.5, 0.5], abs=1e-5)


def test_a_forked_child_can_take_steps():
    wide = nn.Linear(2048, 512)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        optimizer = MeZO(wide, lr=1e-9)
        optimizer.step(lambda: 0.0)
        child = os.fork()
        if child == 0:
            optimizer._weights.advance([Move((Term(1, 0.0),))])
            os._exit(7)
    finally:
        torch.set_num_threads(threads)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 7
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child hangs")

"""The fit by itself: it is the minimum, the decay is chosen on held-out examples, and rows are a linear's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from noback import ExactReadout, InputError
from noback.readouts import Given, LabelRows, Shape
from noback.readouts.fitting import _folds, fit, fit_by_validation

biases = pytest.mark.parametrize("biased", [True, False], ids=["biases", "no-biases"])
CPU = torch.device("cpu")


def given(examples=60, width=7, labels=3, biased=True, noise=1.0, seed=1):
    random = np.random.RandomState(seed)
    features = random.normal(size=(examples, width)) * np.linspace(0.1, 3, width) + random.normal(size=width)
    base = random.normal(size=(examples, labels))
    true = base + features @ random.normal(size=(width, labels)) + random.normal(size=labels)
    gold = (true + noise * random.gumbel(size=true.shape)).argmax(axis=1)
    weights = random.uniform(0.5, 1.5, size=examples)
    return Given(base, features, gold, weights / weights.mean(), biased)


def objective(some, values, decay):
    values = torch.as_tensor(values, dtype=torch.float64)
    base, features, gold, weights = (torch.from_numpy(part) for part in some[:4])
    width = features.shape[1]
    logits = base + features @ values[:, :width].T + (values[:, width] if some.biased else 0.0)
    losses = F.cross_entropy(logits, gold, reduction="none")
    return (losses * weights).mean() + decay / 2 * (values[:, :width] ** 2).sum()


@biases
@pytest.mark.parametrize("shape", [(60, 7), (9, 20)], ids=["more examples", "more features"])
@pytest.mark.parametrize("decay", [10.0, 0.1, 1e-3])
def test_a_fit_is_the_minimum_of_the_penalised_loss(decay, shape, biased):
    some = given(*shape, biased=biased)
    found = fit(some, decay)
    assert found.values.shape == (3, shape[1] + biased)
    values = torch.tensor(found.values, requires_grad=True)
    loss = objective(some, values, decay)
    (slope,) = torch.autograd.grad(loss, values)
    assert slope.abs().max() < 2e-5
    random = np.random.RandomState(2)
    for _ in range(5):  # convex: every step away is up
        further = found.values + 0.1 * random.normal(size=found.values.shape)
        assert objective(some, further, decay) > loss - 1e-9


def test_the_decay_is_the_one_under_which_held_out_examples_are_answered_best():
    plain, noisy = (fit_by_validation(given(noise=noise, examples=200), lambda *_: None) for noise in (0.2, 9.0))
    assert plain.decay < noisy.decay / 30
    some, told = given(noise=9.0), []
    found = fit_by_validation(some, lambda done, of: told.append((done, of)))
    folds = _folds(some.gold)

    def held_out(decay):
        total = 0.0
        for fold in range(folds.max() + 1):
            part, rest = (Given(*(one[mask] for one in some[:4]), True) for mask in (folds != fold, folds == fold))
            weights = rest.weights.sum()
            total += float(objective(rest, fit(part, decay).values, 0.0)) * weights / (weights / len(rest.gold))
        return total

    assert found.decay in (decays := [found.decay * 10 ** (half / 2) for half in range(-4, 5)])
    assert held_out(found.decay) == pytest.approx(min(map(held_out, decays)), rel=0.02)
    assert told[-1][0] == told[-1][1]


def test_folds_have_labels_in_equal_shares():
    folds = _folds(np.array([0, 1] * 16))
    assert [np.bincount(folds[label::2]).tolist() for label in (0, 1)] == [[2] * 8] * 2
    assert _folds(np.array([0, 1, 0])).tolist() in ([0, 2, 1],)


def test_features_that_say_nothing_leave_the_rows_near_zero():
    some = given(noise=1.0)._replace(features=np.ones((60, 7)))
    found = fit_by_validation(some, lambda *_: None)
    assert np.abs(found.values[:, :-1]).max() < 1e-6
    assert np.isfinite(found.values).all()


@biases
def test_what_is_added_is_what_a_linear_with_these_rows_gives_besides(biased):
    rows = LabelRows(ExactReadout(), Shape(3, 5, biased), CPU)
    values = np.random.RandomState(1).normal(size=(3, 5 + biased))
    base, features = torch.randn(2, 4, 3), torch.randn(2, 4, 5)
    assert rows.added(base, features) is base
    rows.take(values)
    there = torch.from_numpy(rows.values())
    expected = base + F.linear(features, there[:, :5], there[:, 5] if biased else None)
    torch.testing.assert_close(rows.added(base, features), expected)


def test_values_come_back_from_their_bytes():
    rows, other = (LabelRows(ExactReadout(), Shape(3, 5, biased=True), CPU) for _ in range(2))
    rows.take(np.random.RandomState(1).normal(size=(3, 6)))
    other.load(rows.stored())
    assert (other.values() == rows.values()).all()
    other.load(b"")
    assert not other.values().any()


def test_fits_are_spread_over_the_evaluations():
    evaluated = [0, 10, 20, 30, 40, 50]
    steps = {refits: sorted(ExactReadout(refits=refits).fit_steps(evaluated)) for refits in (0, 1, 2, 5, 50)}
    assert steps == {0: [0], 1: [0, 50], 2: [0, 30, 50], 5: evaluated, 50: evaluated}


@pytest.mark.parametrize("wrong", [{"decay": 0.0}, {"decay": -1.0}, {"examples": 0}, {"refits": -1}], ids=str)
def test_options_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(InputError, match=f"readout.{next(iter(wrong))}"):
        ExactReadout(**wrong)

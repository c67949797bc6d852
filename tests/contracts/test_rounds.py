"""A search of two rounds, such as a line search, is one class: in a run, and in MeZO."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from noback import MeZO, RunConfig, Sgd, TwoSided
from noback.estimators.base import Estimator
from noback.measuring import measure
from noback.run import Run, drawn_data
from noback.values import Move, Term


@dataclass(frozen=True, slots=True)
class LineSearch(Estimator):
    """The slope of one direction, then the best of three distances down it: the step goes there if lr is 1."""

    kind: ClassVar[str] = "line_search"
    fixed_points: ClassVar[bool] = False

    eps: float | None = 1e-3
    directions: int = 1

    @property
    def forwards(self) -> int:
        """Two sides and three distances."""
        return 5

    def search(self, seeds):
        """The second round lies on the side that the first one found to be lower."""
        (seed,) = seeds
        plus, minus = yield [Move((Term(seed, self.eps),)), Move((Term(seed, -self.eps),))]
        distances = [(-1.0 if plus > minus else 1.0) * far for far in (0.001, 0.01, 0.1)]
        losses = yield [Move((Term(seed, far),)) for far in distances]
        far = distances[int(losses.argmin())]
        return losses[:1] * 0 - far


def test_a_closure_is_called_at_the_points_of_both_rounds_and_goes_down():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 16))
    model = torch.nn.ParameterList([weight])
    optimizer, calls = MeZO(model, lr=1.0, estimator=LineSearch()), []

    def loss():
        calls.append(1)
        return (model[0] ** 2).sum()

    losses = [optimizer.step(loss) for _ in range(60)]
    assert len(calls) == 60 * 5
    assert losses[-1] < losses[0] / 4


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(model=str(tiny_folder), data=str(data_folder), batch=4, rule=Sgd(lr=1.0), estimator=TwoSided(1e-2))


def test_a_run_measures_both_rounds_and_gives_no_halves(config):
    run = Run(dataclasses.replace(config, estimator=LineSearch(eps=1e-2)))
    run.task.use(drawn_data(config))
    scored, score = [], run.engine.score
    run.engine.score = lambda batch, points: scored.append(len(points)) or score(batch, points)
    found = measure(run, 0, 1e-2)
    assert scored == [2, 3]
    assert abs(found.estimate.slopes[0]) in [pytest.approx(far) for far in (0.001, 0.01, 0.1)]
    assert not found.halves()
    assert not run.runs_ahead

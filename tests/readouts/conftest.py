"""A small run with a readout."""

import pytest

from noback import ExactReadout, RunConfig, Sgd, TwoSided


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=7, batch=4, eval_every=3, test_limit=8,
        rule=Sgd(lr=1e-2), estimator=TwoSided(eps=1e-2), readout=ExactReadout(decay=0.1),
    )  # fmt: skip

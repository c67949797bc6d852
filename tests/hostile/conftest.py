"""A small run, trained once, of which each test gets a copy to harm."""

from __future__ import annotations

import json
import shutil

import pytest

from noback import RunConfig, Sgd, TwoSided, train
from tests.conftest import NEGATIVE, POSITIVE, write_rows


def trained(model, folder, **options):
    """A finished run of a few steps, and the data that it was trained on."""
    data = folder / "data"
    data.mkdir(parents=True)
    rows = [{"sentence": text, "label": 1} for text in POSITIVE] + [{"sentence": text, "label": 0} for text in NEGATIVE]
    for split in ("train", "validation", "test"):
        write_rows(data / f"{split}.jsonl", [{**row, "sentence": f"{split}: {row['sentence']}"} for row in rows])
    method = {"rule": Sgd(lr=1e-2), "estimator": TwoSided(eps=1e-2), "steps": 6, "eval_every": 2, "batch": 4}
    train(RunConfig(model=str(model), data=str(data), **(method | options)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def master(tmp_path_factory, tiny_folder):
    return trained(tiny_folder, tmp_path_factory.mktemp("master"))


@pytest.fixture
def run(master, tmp_path):
    """A copy of a finished run's folder."""
    shutil.copytree(master, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def unfinished(run):
    """A copy of a run whose last steps are not there yet."""
    from noback.journal import StepRecord
    from tests.hostile.forging import forge

    forge(run, records=lambda records: [one for one in records if one.step < (4 if isinstance(one, StepRecord) else 5)])
    shutil.rmtree(run / "snapshots")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("kind") in ("start", "zero_shot")]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    return run

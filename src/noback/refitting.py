"""The readout's fits: at some of a run's evaluations, training examples at the weights as they stand give its rows.

Until the next fit the rows stay as they are and stand in the journal at every evaluation, so base and journal give the
tuned model at every step, and a run that is resumed needs nothing else.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noback.answers import Answers
from noback.config import RunConfig
from noback.engines import WithRows, check_numbers
from noback.evaluating import one_by_one, score_of
from noback.journal import Contents
from noback.readouts import Fit, Given
from noback.run import Run
from noback.tasks.balancing import label_weights


def fit_steps(config: RunConfig) -> frozenset[int]:
    """The steps at whose evaluations a run fits its readout; none where it has none."""
    if config.readout is None:
        return frozenset()
    evaluated = [*range(0, config.steps, config.steps_between_evaluations), config.steps]
    return config.readout.fit_steps(evaluated)


def forwards_taken(run: Run, step: int) -> int:
    """The forwards of a batch that `step` steps took, the readout's fits up to there, and what found the lr."""
    config = run.config
    passes = sum(one <= step for one in fit_steps(config))
    batches = math.ceil(_seen(run) / config.batch) if passes else 0
    return step * config.estimator.forwards + passes * batches + screening_forwards(run)


def screening_forwards(run: Run) -> int:
    """The forwards of a batch that finding the learning rate took, as the run's metrics have them."""
    line = (run.folder.first_metrics() if run.is_recorded else None) or {}
    found = line.get("forwards") if line.get("kind") == "screening" else 0  # written before anything else of the run
    return found if isinstance(found, int) else 0


def refit(run: Run, contents: Contents, step: int) -> None:
    """Fit the readout before an evaluation that is to come, where its turn is; one that is recorded stands."""
    if run.readout is None or step not in fit_steps(run.config):
        return
    if step in {one.step for one in contents.evaluations}:
        return
    given, found = fit(run, run.readout)
    run.folder.add_metrics(
        kind="readout", step=step, decay=found.decay, loss=found.loss, held_out=found.held_out, examples=len(given.gold)
    )
    if step == 0:
        _tell_yardsticks(run, run.readout, given)


def fit(run: Run, readout: WithRows) -> tuple[Given, Fit]:
    """Fit the readout where the weights stand: what it was fitted to, and what came out."""
    given, rows = _given(run, readout, "train", _every(run)), readout.rows
    found = rows.readout.fit(given, lambda done, of: run.watcher.progress("fitting the readout", done, of))
    rows.take(found.values)
    if run.world.size > 1:  # machines may round otherwise
        rows.load(run.world.from_rank(0, rows.stored()))
    return given, found


def _tell_yardsticks(run: Run, readout: WithRows, given: Given) -> None:
    """Test the readout on the untouched model, and a linear probe on the same features: what no step had a part in."""
    test = _given(run, readout, "test", 1)
    probe = readout.rows.readout.fit(given._replace(base=np.zeros_like(given.base)))
    gold = torch.from_numpy(test.gold)
    for kind, base, fit in (("frozen_readout", test.base, readout.rows.values()), ("linear_probe", 0.0, probe.values)):
        logits = torch.from_numpy(base + _scores(biased=given.biased, features=test.features, values=fit)).float()
        found = Answers(logits, gold)
        run.folder.add_metrics(
            kind=kind, **dataclasses.asdict(score_of(run, found, with_objective=False)), **one_by_one(run, found)
        )


def _scores(*, biased: bool, features: NDArray[np.float64], values: NDArray[np.floating]) -> NDArray[np.float64]:
    width = features.shape[1]
    found: NDArray[np.float64] = features @ values[:, :width].T + (values[:, -1] if biased else 0.0)
    return found


def _given(run: Run, readout: WithRows, name: str, every: int) -> Given:
    """What a set, or one in so many of its examples, gives where the weights stand."""
    logits, features, gold, done = list[Tensor](), list[Tensor](), list[Tensor](), 0
    total = math.ceil(run.task.size(name) / every)
    for batch in run.task.batches(name, run.config.batch, every=every):
        read = readout.read(batch)
        check_numbers(read.logits, None)
        logits.append(read.logits)
        features.append(read.features)
        gold.append(batch.gold)
        done += len(batch)
        run.watcher.progress(f"reading the {name} set's features", done, total)
    golds = torch.cat(gold).numpy()
    weights = np.array(label_weights(golds.tolist())) if run.config.balance is not None else np.ones(len(golds))
    return Given(
        torch.cat(logits).double().numpy(), torch.cat(features).double().numpy(), golds, weights,
        readout.rows.shape.biased,
    )  # fmt: skip


def _every(run: Run) -> int:
    """One in how many training examples a fit sees."""
    readout = run.config.readout
    return math.ceil(run.task.size("train") / readout.examples) if readout is not None else 1


def _seen(run: Run) -> int:
    """How many training examples a fit sees."""
    return math.ceil(run.task.size("train") / _every(run))

"""Baselines: what the same data and the same evaluation give without noback's way of training.

Zero-shot, a linear probe on the features at the mask, and fine-tuning by back-propagation with Adam,
each with its memory and time beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noback.calibration import calibrated_accuracy
from noback.config import RunConfig
from noback.engines import by_example, readout_for, readout_of
from noback.errors import Diverged, InputError, Interrupted, NoNumbers
from noback.evaluating import answers, score, score_of
from noback.memory import forget_peak, peak_memory
from noback.objectives import TEXTS
from noback.options import one_of
from noback.run import Run, drawn_data, with_whole_paths
from noback.tasks import Batch
from noback.usual import usual_lr
from noback.values import Score
from noback.watching import Silent, Watcher

METHODS = ("zero-shot", "probe", "adam")
_PENALTIES = (0.01, 0.1, 1.0, 10.0)  # of the probe: 1 / strength, the best by validation


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a baseline reached; accuracies are of the test set."""

    method: str
    task: str
    adapter: str
    zero_shot: float
    best: float
    best_step: int
    validation: float  # the best evaluation's score
    steps: int
    forwards: int
    backwards: int
    lr: float | None
    tuned: int
    seconds: float
    peak_memory_bytes: int
    calibrated: float | None = None  # zero-shot less what a content-free prompt gives; None: masked, or written


def baseline(
    config: RunConfig,
    method: str,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Baseline:
    """Run a baseline on a configuration's data; its lr, where given, is Adam's, and the estimator plays no part."""
    one_of("method", method, METHODS)
    if config.objective.judges == TEXTS:
        raise InputError(
            "a baseline is measured by right answers, and objective 'reward' has none; "
            "`noback train` prints the reward before training"
        )
    if not config.engine.needs_base:
        raise InputError(
            f"a baseline needs the model here, and engine {config.engine.kind!r} has it: use --engine local"
        )
    config, watcher = replace(with_whole_paths(config), readout=None), watcher or Silent()
    drawn = drawn_data(config)
    forget_peak()
    run = Run(config, watcher=watcher)
    run.task.use(drawn)
    for note in run.task.notes:
        watcher.note(note)
    answered, began = answers(run, "test"), time.monotonic()
    zero_shot = score_of(run, answered).accuracy or 0.0
    found = Baseline(
        method, run.task.spec.name, config.adapter.kind, zero_shot, zero_shot, 0,
        score(run, "validation").score, 0, 0, 0, None, 0, 0.0, 0, calibrated_accuracy(run, *answered[:2]),
    )  # fmt: skip
    if method == "probe":
        found = replace(found, **_probe(run))
    if method == "adam":
        usual = usual_lr(config.adapter.kind, "backprop", "adam", config.dtype)
        rate = usual if config.rule.lr is None else config.lr
        found = replace(found, **_adam(run, rate, watcher, stop))
    return replace(found, seconds=round(time.monotonic() - began, 3), peak_memory_bytes=peak_memory(run.device))


# The linear probe


def _probe(run: Run) -> dict[str, Any]:
    """Logistic regression on the hidden state at the mask (at a causal prompt's end, at the first token for a head)."""
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise InputError("a linear probe needs scikit-learn: pip install 'noback[baselines]'") from None
    if run.task.spec.is_causal and run.task.word_ids is None:
        raise InputError(f"a linear probe needs labels of one token each; task {run.task.spec.name!r} has others")
    sets = {name: _features(run, name) for name in ("train", "validation", "test")}
    fitted = []
    for penalty in _PENALTIES:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=2000))
        model.fit(*sets["train"])
        fitted.append((float(model.score(*sets["validation"])), model))
    validation, best = max(fitted, key=lambda pair: pair[0])
    features, labels = sets["train"][0].shape[1], len(run.task.spec.labels)
    return {
        "best": float(best.score(*sets["test"])),
        "validation": validation,
        "forwards": sum(-(-run.task.size(name) // run.config.batch) for name in sets),
        "tuned": (features + 1) * (labels if labels > 2 else 1),
    }


@torch.inference_mode()
def _features(run: Run, name: str) -> tuple[Any, Any]:
    rows, gold = [], []
    for batch in run.task.batches(name, run.config.batch):
        there = batch.to(run.device)
        hidden = run.model.base_model(**there.inputs)[0]
        rows.append(hidden[torch.arange(len(batch), device=run.device), there.mask_positions].float().cpu())
        gold.append(batch.gold)
    return torch.cat(rows).numpy().astype(np.float64), torch.cat(gold).numpy()


# Adam


def _adam(run: Run, lr: float, watcher: Watcher, stop: Callable[[], bool]) -> dict[str, Any]:
    """Adam on the tuned tensors, its learning rate falling to zero in a straight line; the best evaluation is kept."""
    config = run.config
    tuned = [tensor for name, tensor in run.model.named_parameters() if name in run.weights.names]
    for tensor in run.model.parameters():
        tensor.requires_grad_(requires_grad=False)
    for tensor in tuned:
        tensor.requires_grad_()
    optimizer = torch.optim.Adam(tuned, lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=config.steps)
    best, kept, best_step = score(run, "validation"), [tensor.detach().clone() for tensor in tuned], 0
    for step in range(config.steps):
        if stop():
            raise Interrupted("stopped; a baseline keeps nothing")
        run.model.train()
        loss = _loss(run, run.batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.model.eval()
        watcher.progress("fine-tuning with Adam", step + 1, config.steps)
        if (step + 1) % config.steps_between_evaluations == 0 or step + 1 == config.steps:
            found = _evaluated(run, step + 1)
            if (found.score, -found.loss) > (best.score, -best.loss):
                best, best_step, kept = found, step + 1, [tensor.detach().clone() for tensor in tuned]
    with torch.no_grad():
        for tensor, value in zip(tuned, kept, strict=True):
            tensor.copy_(value)
    return {
        "best": score(run, "test").accuracy, "best_step": best_step, "validation": best.score, "steps": config.steps,
        "forwards": config.steps, "backwards": config.steps, "lr": lr, "tuned": run.weights.size,
    }  # fmt: skip


def _evaluated(run: Run, step: int) -> Score:
    try:
        return score(run, "validation")
    except NoNumbers as error:
        raise Diverged(f"{error.found} after step {step} of Adam: try a smaller lr") from None


def _loss(run: Run, batch: Batch) -> Tensor:
    batch = batch.to(run.device)
    found = batch.candidates
    usual = readout_of(run.model, run.task.word_ids)
    readout = readout_for(None if found is None else found.targets, run.model, usual)
    with readout.reading(batch.mask_positions):
        logits = by_example(readout.label_logits(run.model(**batch.inputs).logits), found)
    if run.config.objective.answer_only:
        return -logits.gather(1, batch.gold[:, None]).mean()
    return F.cross_entropy(logits, batch.gold)

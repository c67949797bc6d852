"""A user's program, for `mypy --strict` alone: what the public names take and give, and what a checker refuses.

Nothing here runs. A line that a checker must refuse has a `type: ignore` with the error's name; `make lint` fails where
such a line is accepted, for strict mode warns of an ignore that is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import torch

import noback


def on_event(event: noback.Event) -> None:
    """A callback."""
    assert_type(event.loss, float)
    assert_type(event.accuracy, float | None)
    if event.kind == "evaluation" and event.step > 10:
        event.stop()


def trained() -> noback.Result:
    """Every way to train."""
    rows = [{"sentence": "a lovely film", "label": 1}]
    result = noback.train(task="reviews", data=rows, model="mini", lr=1e-5, steps=5, adapter="lora")
    assert_type(result, noback.Result)
    assert_type(result.best, float | None)
    assert_type(result.stopped, bool)
    assert_type(result.verdict, str)
    config = noback.RunConfig(steps=3, adapter="lora", rule=noback.Momentum(), noise="rademacher", objective="accuracy")
    assert_type(config.steps, int)
    assert_type(config.lr, float)
    assert_type(config.adapter.kind, str)
    noback.train(config, Path("runs") / "x", seed=3, callback=on_event, stop=lambda: False, watcher=noback.Display())
    noback.train(estimator=noback.OneSided(directions=8), adapt_ties=True, data={"train": rows, "test": rows})
    noback.train(stpes=5)  # type: ignore[call-arg]
    noback.train(steps="many")  # type: ignore[arg-type]
    noback.RunConfig(learning_rate=1e-5)  # type: ignore[call-arg]
    return noback.resume(result.run, callback=on_event)


def looked_at(result: noback.Result) -> list[tuple[int, float]]:
    """The course of a run, its weights and its answers."""
    history = result.history
    assert_type(history, noback.History)
    assert_type([one.accuracy for one in history.evaluations], list[float | None])
    run, step = noback.tuned_run(result.run, at="best")
    assert_type(run, noback.Run)
    assert_type(step, int)
    score, notes = noback.evaluate(run, split="validation")
    assert_type(score, noback.Score)
    assert_type(notes, list[str])
    assert_type(noback.predict(run, ["a lovely film"]), list[dict[str, float]])
    noback.export(run, Path("model"))
    noback.trian()  # type: ignore[attr-defined]
    return [(one.step, one.loss) for one in history.steps]


def measured() -> None:
    """What other commands give."""
    compared = noback.compare(objectives=["cross_entropy", "accuracy"], eps=[1e-3, 1e-2], steps=5)
    assert_type([row["after"] for row in compared["rows"]], list[float | None])
    table = noback.epsilon(at=[1e-3], steps=5)
    assert_type([one["reason"] for one in table["recommendations"]], list[str])
    assert_type(noback.baseline("adam", lr=1e-4).best, float)
    page = noback.report("runs/x", "runs/y", out="both.html")
    assert_type(page.path, Path | None)
    compared["row"]  # type: ignore[typeddict-item]


def tuned(model: torch.nn.Module, inputs: torch.Tensor) -> float:
    """The method by itself."""
    optimizer = noback.MeZO(model, lr=1e-2, eps=1e-3, estimator=noback.TwoSided(), rule=noback.Sgd())
    loss = optimizer.step(lambda: model(inputs).pow(2).mean())
    assert_type(loss, float)
    assert_type(optimizer.steps, int)
    try:
        optimizer.lr = 1e-3
    except noback.InputError as error:
        assert_type(error.exit_code, int)
    return loss

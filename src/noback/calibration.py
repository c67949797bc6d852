"""Calibrated zero-shot: a causal model's scores of its answers less those it gives when the prompt says nothing.

A model that likes one answer whatever comes before it gives that answer; what it gives after a content-free prompt is
that liking, and without it the rest is what the prompt says (Zhao et al., 2021).
"""

from __future__ import annotations

from torch import Tensor

from noback.answers import scored, side_by_side, with_any_right
from noback.objectives import accuracy
from noback.run import Run

CONTENT_FREE = "N/A"  # in place of each column of the prompt


def calibrated_accuracy(run: Run, logits: Tensor, gold: Tensor, name: str = "test") -> float | None:
    """The accuracy of a set's calibrated answers; None where the task is for masked models or answers are written."""
    spec = run.task.spec
    if not spec.is_causal or spec.answer == "text":
        return None
    found = calibrated(logits, content_free(run, name))
    return accuracy(found.argmax(dim=1), with_any_right(found, gold, run.task.rights(name)))


def calibrated(logits: Tensor, free: Tensor) -> Tensor:
    """Scores less those after a content-free prompt; -inf where an example has fewer choices than others."""
    return (logits - free).masked_fill(free.isinf(), float("-inf"))


def content_free(run: Run, name: str) -> Tensor:
    """What a content-free prompt gives: [1, label words], or what each example's choices get [examples, choices]."""
    spec, size = run.task.spec, run.config.batch
    if spec.answer == "words":
        return scored(run.engine, run.task.prompts([(CONTENT_FREE,) * len(spec.sentences)]))[0]
    parts, done = [], 0
    for batch in run.task.batches(name, size, instead=CONTENT_FREE):
        parts += scored(run.engine, batch)
        done += len(batch)
        run.watcher.progress(f"calibrating the answers to the {name} set", done, run.task.size(name))
    return side_by_side(parts)

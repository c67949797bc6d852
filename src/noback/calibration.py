"""Calibrated zero-shot: a causal model's label scores less those it gives when the prompt says nothing.

A model that likes one label word whatever comes before it answers with that word; what it gives to a content-free
prompt is that liking, and without it the rest is what the sentence says (Zhao et al., 2021).
"""

from __future__ import annotations

from torch import Tensor

from noback.engines import STILL
from noback.objectives import accuracy
from noback.run import Run

CONTENT_FREE = "N/A"  # in place of each sentence


def calibrated_accuracy(run: Run, logits: Tensor, gold: Tensor) -> float | None:
    """The accuracy of calibrated answers; None where the task is not of a causal model's label words."""
    spec = run.task.spec
    if not (spec.is_causal and spec.answer == "words"):
        return None
    (free,) = run.engine.score(run.task.prompts([(CONTENT_FREE,) * len(spec.sentences)]), [STILL])
    return accuracy((logits - free).argmax(dim=1), gold)

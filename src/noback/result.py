"""The end of a run: the last and the best weights tested, the worst mistakes, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from noback.answers import Answers
from noback.counts import one_answer_score, one_answer_warning
from noback.evaluating import answers, one_by_one, score_of, stopping_at
from noback.health import on_the_way, slope_figures
from noback.history import History, read_history
from noback.journal import Contents
from noback.memory import peak_memory
from noback.objectives import TEXTS, exact_match
from noback.refitting import forwards_taken, screening_forwards
from noback.replaying import go_to
from noback.run import Run
from noback.values import Score
from noback.verdict import verdict

_MISTAKES = 20  # the worst ones that a report shows


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run has to say; accuracies are of the test set, None where a reward judges the answers."""

    run: str
    task: str
    metric: str
    objective: str
    zero_shot: float | None
    calibrated: float | None  # zero-shot less what a content-free prompt gives; None: masked, or written
    final: float | None
    best: float | None
    zero_shot_score: float  # by the metric: the task's own, or the mean reward
    final_score: float
    best_score: float
    best_step: int
    steps: int
    forwards: int
    seconds: float
    journal_bytes: int
    peak_memory_bytes: int
    weights: str
    final_weights: str
    zero_slope_share: float
    mean_abs_slope: float
    min_abs_slope: float
    max_abs_slope: float
    one_answer_score: float | None  # what one label as the answer to the whole test set scores, by the metric
    warnings: tuple[str, ...]  # of the best weights' answers to the test set
    verdict: str
    evidence: tuple[str, ...]
    health: tuple[str, ...]  # what was measured on the way; it may differ where a run was interrupted
    stopped_early: bool = False  # whether its patience ended it before all its steps were taken
    frozen_readout: float | None = None  # accuracy of the readout on the untouched model; None: no readout, or lost
    linear_probe: float | None = None  # that of a linear probe on the same features
    screening_forwards: int = 0  # those of `forwards` that found the learning rate (lr auto)
    stopped: bool = False  # whether it was asked to stop after `steps` steps; `noback.resume(result.run)` goes on

    @property
    def history(self) -> History:
        """The loss of each step and every evaluation, read from the run's folder."""
        return read_history(self.run)


def finished(run: Run, contents: Contents, zero_shot: Score, seconds: float, *, stopped: bool = False) -> Result:
    """Test the last weights and the best; the run is left with the best.

    Of a run that was `stopped`, nothing is written: its end is yet to come.
    """
    config, steps = run.config, len(contents.steps)
    tell = _nothing if stopped else run.folder.add_metrics
    with stopping_at(run, contents, steps):
        answered = answers(run, "test")
        final, final_weights = score_of(run, answered), run.weights.digest()
    tell(kind="test", at="final", step=steps, **dataclasses.asdict(final), **one_by_one(run, answered))
    best = contents.best()
    best_step = best.step if best else steps
    with stopping_at(run, contents, best_step):
        if best_step != steps:
            go_to(run, best_step, contents)
            answered = answers(run, "test")
        tested = score_of(run, answered)
    tell(kind="test", at="best", step=best_step, **dataclasses.asdict(tested), **one_by_one(run, answered))
    tell(kind="mistakes", step=best_step, mistakes=_mistakes(run, answered))
    metrics = run.folder.read_metrics()
    judged = verdict(contents, metrics)
    result = Result(
        run=str(run.folder.path),
        task=run.task.spec.name,
        metric=run.metric,
        objective=config.objective.kind,
        zero_shot=zero_shot.accuracy,
        calibrated=_calibrated(run),
        final=final.accuracy,
        best=tested.accuracy,
        zero_shot_score=zero_shot.score,
        final_score=final.score,
        best_score=tested.score,
        best_step=best_step,
        steps=steps,
        forwards=forwards_taken(run, steps),
        seconds=round(seconds, 3),
        journal_bytes=run.folder.journal.stat().st_size,
        peak_memory_bytes=peak_memory(run.device),
        weights=run.weights.digest(),
        final_weights=final_weights,
        **slope_figures([slope for record in contents.steps for slope in record.slopes]),
        one_answer_score=one_answer_score(tested.confusion, run.metric),
        warnings=tuple(said for said in [one_answer_warning(tested.confusion, run.task.texts, "test set")] if said),
        verdict=judged.word,
        evidence=judged.evidence,
        health=on_the_way(contents, metrics),
        stopped_early=contents.stopped_early,
        frozen_readout=_accuracy_of(metrics, "frozen_readout"),
        linear_probe=_accuracy_of(metrics, "linear_probe"),
        screening_forwards=screening_forwards(run),
        stopped=stopped,
    )
    tally = run.engine.tally
    if tally.saved:
        tell(kind="sharing", **dataclasses.asdict(tally))
        run.watcher.note(f"{tally}")
    tell(kind="result", **dataclasses.asdict(result))
    return result


def _nothing(**_values: Any) -> None:
    """Write no line of metrics."""


def _accuracy_of(metrics: Sequence[Mapping[str, Any]], kind: str) -> float | None:
    """The accuracy on the last line of a kind."""
    return next((line.get("accuracy") for line in reversed(metrics) if line.get("kind") == kind), None)


def _calibrated(run: Run) -> float | None:
    lines = (line for line in run.folder.read_metrics() if line.get("kind") == "zero_shot")
    return next((line["calibrated"] for line in lines if "calibrated" in line), None)


def _mistakes(run: Run, answered: Answers) -> list[dict[str, Any]]:
    """The wrong answers that the model was surest of; of written ones, the first; of rewarded ones, the least."""
    sentences = run.task.sentences("test")
    if run.config.objective.judges == TEXTS:
        rewards = answered.logits[:, 0].tolist()
        least = sorted(range(len(rewards)), key=lambda index: rewards[index])[:_MISTAKES]
        return [
            {
                "sentences": list(sentences[index]),
                "gold": "".join(answered.written[index].accepted[:1]),
                "answer": answered.written[index].text,
                "reward": rewards[index],
            }
            for index in least
        ]
    if answered.written:
        wrong = [index for index, one in enumerate(answered.written) if not exact_match(*one)]
        found = [(index, answered.written[index]) for index in wrong[:_MISTAKES]]
        return [
            {"sentences": list(sentences[index]), "gold": one.accepted[0], "answer": one.text} for index, one in found
        ]
    chances, chosen = torch.softmax(answered.logits.double(), dim=1).max(dim=1)
    wrong = torch.nonzero(chosen != answered.gold).view(-1).tolist()
    options = run.task.options("test")
    return [
        {
            "sentences": list(sentences[index]),
            "gold": options[index][int(answered.gold[index])],
            "answer": options[index][int(chosen[index])],
            "chance": round(float(chances[index]), 4),
        }
        for index in sorted(wrong, key=lambda index: -float(chances[index]))[:_MISTAKES]
    ]

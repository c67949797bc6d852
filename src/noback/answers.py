"""Answers to a whole set: label logits, or texts that were written, and how good they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.config import RunConfig
from noback.engines import Engine, check_numbers
from noback.errors import InputError, NoNumbers
from noback.objectives import LOSS, SELECTING, TEXT_METRICS, TEXTS, exact_match
from noback.tasks import Batch, Question, TaskSpec
from noback.values import UNPERTURBED, Move, Score, to_float32


class Written(NamedTuple):
    """A text that was written, and those that are right."""

    text: str
    accepted: tuple[str, ...]


class Answers(NamedTuple):
    """How a set was answered, in the order of its batches."""

    logits: Tensor  # [examples, labels or candidates], -inf where an example has fewer; or rewards [examples, 1]
    gold: Tensor  # [examples]
    written: tuple[Written, ...] = ()  # where answers are texts; the logits are then the right texts' own


def scored(engine: Engine, batch: Batch, points: Sequence[Move] = (UNPERTURBED,)) -> list[Tensor]:
    """The label logits of a batch at each point, to be judged; those that are no numbers are refused."""
    found = engine.score(batch, points)
    for logits in found:
        check_numbers(logits, batch.candidates)
    return found


def scored_groups(
    engine: Engine, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
) -> list[list[Tensor]]:
    """The label logits of each group of a batch's examples at its own points; those that are no numbers are refused."""
    found = engine.score_groups(batch, groups, points)
    for part, own in zip(groups, found, strict=True):
        candidates = batch.part(part).candidates
        for logits in own:
            check_numbers(logits, candidates)
    return found


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Logits of several batches as one [examples, candidates]; -inf where an example has fewer."""
    width = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, width - part.shape[1]), value=float("-inf")) for part in parts])


def with_any_right(logits: Tensor, gold: Tensor, rights: Sequence[tuple[int, ...]]) -> Tensor:
    """The gold choices, in place of which an answer stands that is right as well."""
    answers = zip(logits.argmax(dim=1).tolist(), gold.tolist(), rights, strict=True)
    return torch.tensor([answer if answer in right else first for answer, first, right in answers], device=gold.device)


def text_score(metric: str, written: Sequence[Written], loss: float, objective: float | None) -> Score:
    """The score of written answers: exact match as the accuracy, and the task's own metric."""
    judge = TEXT_METRICS[metric]
    return Score(
        accuracy=sum(exact_match(*one) for one in written) / len(written),
        score=sum(judge(*one) for one in written) / len(written),
        loss=loss,
        objective=objective,
        examples=len(written),
        confusion=[],
    )


def rewards_of(objective: Any, questions: Sequence[Question], texts: Sequence[str]) -> Tensor:
    """What an objective of texts gives for the text that answers each question: [examples, 1]."""
    found: Tensor = objective.rewards((one.row, text, one.right) for one, text in zip(questions, texts, strict=True))
    return found


def reward_score(rewards: Tensor) -> Score:
    """The score of texts that a reward has judged: its mean."""
    mean = float(rewards.mean())
    return Score(accuracy=None, score=mean, loss=-mean, objective=-mean, examples=len(rewards), confusion=[])


def checked(score: Score) -> Score:
    """The score; one that is no number in the precision of a journal is refused."""
    for name in ("score", "loss", "objective"):
        value = getattr(score, name)
        if value is not None and not math.isfinite(to_float32(value)):
            raise NoNumbers(f"the {name} of {score.examples} examples is {value:g}, which is no finite float32")
    return score


def fitted(config: RunConfig, spec: TaskSpec, *, divided: bool = False) -> RunConfig:
    """The configuration with an objective that fits the task's answers; `divided`: ranks hold the model together."""
    if not spec.label and config.objective.judges != TEXTS:
        raise InputError(
            f"task {spec.name!r} names no label, so only a reward can judge its answers: "
            "--objective reward:module:function"
        )
    config = dataclasses.replace(config, objective=config.objective.for_answers(spec.answer, spec.name))
    config = _with_readout_that_fits(config, spec, divided=divided)
    if config.balance is not None and not spec.labels:
        raise InputError(
            f"balance is {config.balance!r} and task {spec.name!r} has no labels to be in equal shares; leave it out"
        )
    known = _metrics_for(config, spec)
    if config.metric is not None and config.metric not in known:
        raise InputError(
            f"metric {config.metric!r} does not fit the answers of task {spec.name!r}; "
            + (f"expected one of {', '.join(known)}" if known else f"leave it out: they are judged by {spec.metric}")
        )
    return config


def left_out(config: RunConfig, spec: TaskSpec, *, divided: bool = False) -> str:
    """Why a readout is left out."""
    return f"readout: left out, for {_against_readout(config, spec, divided=divided)}"


def _against_readout(config: RunConfig, spec: TaskSpec, *, divided: bool) -> str | None:
    """Why a run can have no readout, as far as that is known before its model is there."""
    if config.adapter.head_seed is not None:
        return f"adapter {config.adapter.kind!r} reads no label words"
    if spec.answer != "words":
        return f"task {spec.name!r} reads no label words"
    if not config.objective.teaches:
        return f"objective {config.objective.kind!r} has no gradient to fit it by"
    if not config.engine.gives_features:
        return f"engine {config.engine.kind!r} answers with scores, and it needs what the decoder is given"
    return "the ranks hold the model together, and it needs the whole of it" if divided else None


def _with_readout_that_fits(config: RunConfig, spec: TaskSpec, *, divided: bool) -> RunConfig:
    """The configuration without a readout where its objective cannot teach one; refused where there are no words."""
    if config.readout is None:
        return config
    if config.readout.if_possible:
        kept = _against_readout(config, spec, divided=divided) is None
        return config if kept else dataclasses.replace(config, readout=None)
    if config.adapter.head_seed is not None or (config.objective.teaches and spec.answer != "words"):
        what = f"adapter {config.adapter.kind!r}" if config.adapter.head_seed is not None else f"task {spec.name!r}"
        raise InputError(
            f"a readout stands on top of label words, and {what} reads none: leave it out (--readout words)"
        )
    return config if config.objective.teaches else dataclasses.replace(config, readout=None)


def _metrics_for(config: RunConfig, spec: TaskSpec) -> list[str]:
    """What the best weights can be chosen by: all metrics need labels, and F1 two; texts have their own judge."""
    if config.objective.judges == TEXTS or spec.answer == "text":
        return []
    if not spec.labels:
        return ["accuracy", LOSS]
    return [name for name in SELECTING if name != "f1" or len(spec.labels) == 2]

"""Evaluation: a whole set answered by a run's weights as they stand, and how good the answers are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noback.answers import (
    Answers,
    Written,
    checked,
    reward_score,
    rewards_of,
    scored,
    side_by_side,
    text_score,
    with_any_right,
)
from noback.engines import Writing
from noback.errors import Diverged, NoNumbers
from noback.journal import Contents
from noback.objectives import (
    LOSS,
    METRICS,
    TEXT_METRICS,
    TEXTS,
    accuracy,
    answer_loss,
    confusion,
    credits_of,
    cross_entropy,
)
from noback.paired import PerExample, losses_at_best_temperature
from noback.run import Run
from noback.tasks import Question
from noback.tasks.balancing import label_weights, repeated_places
from noback.values import UNPERTURBED, Move, Score

_DIGITS = 5  # of a recorded loss: enough for a test of its change


def answers(run: Run, name: str) -> Answers:
    """The label logits of a whole set with the weights as they stand, its gold labels, and what was written."""
    objective, task = run.config.objective, run.task
    if objective.judges == TEXTS:
        written = _written(run, name)
        rewards = rewards_of(objective, task.questions(name), [one.text for one in written])
        return Answers(rewards, torch.zeros(len(rewards), dtype=torch.long), written)
    logits, gold = _chosen_from(run, name)
    return Answers(logits, gold, _written(run, name))


def sample_of_training(run: Run, most: int) -> Answers | None:
    """At most so many training examples, always the same ones, answered; None where answers are written or rewarded."""
    if run.config.objective.judges == TEXTS or run.spec.answer == "text":
        return None
    return Answers(*_chosen_from(run, "train", every=math.ceil(run.task.size("train") / most)))


def _chosen_from(run: Run, name: str, every: int = 1) -> tuple[Tensor, Tensor]:
    """The label logits of a set, or of one in so many of its examples, and its gold labels."""
    parts, gold, done, total = [], [], 0, math.ceil(run.task.size(name) / every)
    for batch in run.task.batches(name, run.config.batch, every=every):
        parts += scored(run.engine, batch)
        gold.append(batch.gold)
        done += len(batch)
        run.watcher.progress(f"answering the {name} set", done, total)
    logits = side_by_side(parts)
    return logits, with_any_right(logits, torch.cat(gold), run.task.rights(name, every))


def objective_parts(run: Run, name: str, most: int, parts: int) -> list[float]:
    """The run's objective on parts of a set, of which at most so many examples are answered, always the same ones."""
    every = math.ceil(run.task.size(name) / most)
    if run.config.objective.judges == TEXTS:
        questions = run.task.questions(name)[::every]
        logits = rewards_of(run.config.objective, questions, _texts(run, questions, name))
        gold = torch.zeros(len(questions), dtype=torch.long)
    else:
        logits, gold = _chosen_from(run, name, every)
    if run.config.balance is not None:
        places = repeated_places(gold.tolist())
        logits, gold = logits[places], gold[places]
    reduced, parts = run.config.objective.reduced(logits, gold), min(parts, len(gold))
    return [run.loss_of(reduced[part::parts], gold[part::parts]) for part in range(parts)]


def per_example(run: Run, answered: Answers) -> PerExample:
    """The same answers one by one, to be compared with those of other weights."""
    logits, gold, written = answered
    if run.config.objective.judges == TEXTS:
        rewards = logits[:, 0].tolist()
        return PerExample(rewards, *[[-reward for reward in rewards]] * 2)
    scores, right = logits.double().numpy(), gold.numpy()
    if written:
        judge = TEXT_METRICS[run.metric]
        losses = _short(-scores[np.arange(len(right)), right])
        return PerExample([judge(*one) for one in written], losses, losses)
    losses = _short(np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(right)), right])
    tempered = losses_at_best_temperature(scores, right)
    if run.config.balance is not None:
        weights = np.array(label_weights(right.tolist()))
        losses, tempered = _short(weights * losses), weights * tempered
    by_loss = run.metric == LOSS
    credit = [-loss for loss in losses] if by_loss else credits_of(run.metric, logits.argmax(dim=1), gold)
    return PerExample(credit, losses, _short(tempered))


def one_by_one(run: Run, answered: Answers) -> dict[str, list[Any]]:
    """Each answer that was chosen, whether it is right, and its probability; nothing of what was written."""
    if run.config.objective.judges == TEXTS or answered.written:
        return {}
    chances, chosen = torch.softmax(answered.logits.double(), dim=1).max(dim=1)
    right = (chosen == answered.gold).long()
    return {"answers": chosen.tolist(), "right": right.tolist(), "chances": [round(one, 4) for one in chances.tolist()]}


def _short(losses: NDArray[np.float64]) -> list[float]:
    return [round(loss, _DIGITS) for loss in losses.tolist()]


def score(run: Run, name: str) -> Score:
    """Answer a whole set with the weights as they stand."""
    return score_of(run, answers(run, name))


def score_of(run: Run, answered: Answers, *, with_objective: bool = True) -> Score:
    """How good some answers are; the objective may be a function that is not at hand after the run."""
    return checked(_score_of(run, answered, with_objective=with_objective))


@contextmanager
def stopping_at(run: Run, contents: Contents, step: int) -> Iterator[None]:
    """Within, answers and losses that are no numbers stop the run: a line tells report and verdict, the error the step.

    What the journal holds up to there is sound; none of it is written from such numbers.
    """
    try:
        yield
    except NoNumbers as error:
        run.folder.add_metrics(kind="diverged", step=step, found=error.found)
        raise Diverged(f"{error.found} at step {step}, so the run stops; {_what_is_left(run, contents)}") from None


def _what_is_left(run: Run, contents: Contents) -> str:
    """What can be done where a run stopped for numbers that are none."""
    best = contents.best()
    if best is None and not contents.steps:
        return "the base weights give such answers by themselves: use another model or dtype"
    left = "none of its evaluations gave numbers"
    if best is not None:
        left = f"its best weights are those of step {best.step} (noback evaluate {run.folder.path})"
    return f"the journal up to there is sound, and {left}: train anew with a smaller lr or eps"


def _score_of(run: Run, answered: Answers, *, with_objective: bool) -> Score:
    logits, gold, written = answered
    if run.config.objective.judges == TEXTS:
        return reward_score(logits)
    shares = repeated_places(gold.tolist()) if run.config.balance is not None else slice(None)
    objective = run.loss(logits[shares], gold[shares]) if with_objective else None
    if written:
        return text_score(run.metric, written, answer_loss(logits, gold), objective)
    predicted, loss = logits.argmax(dim=1), cross_entropy(logits[shares], gold[shares])
    return Score(
        accuracy=accuracy(predicted, gold),
        score=-loss if run.metric == LOSS else METRICS[run.metric](predicted, gold),
        loss=loss,
        objective=objective,
        examples=len(gold),
        confusion=confusion(predicted, gold, logits.shape[1]) if run.spec.labels else [],
    )


def write(run: Run, prompts: Sequence[Sequence[int]], points: Sequence[Move] = (UNPERTURBED,)) -> list[list[str]]:
    """What the model writes after some prompts of tokens at each point."""
    writing = Writing(run.tokenizer, run.spec.max_new_tokens, run.spec.stop)
    return [writing.texts(tokens) for tokens in run.engine.write(prompts, points, writing)]


def _written(run: Run, name: str) -> tuple[Written, ...]:
    """The answers that are written, where the task asks for such."""
    if run.spec.answer != "text":
        return ()
    questions = run.task.questions(name)
    texts = _texts(run, questions, name)
    return tuple(Written(text, one.right) for text, one in zip(texts, questions, strict=True))


def _texts(run: Run, questions: Sequence[Question], name: str) -> list[str]:
    """What the model writes after the prompts of some questions of a set."""
    size, texts = run.config.batch, list[str]()
    for begin in range(0, len(questions), size):
        texts += write(run, [one.ids for one in questions[begin : begin + size]])[0]
        run.watcher.progress(f"writing answers to the {name} set", len(texts), len(questions))
    return texts

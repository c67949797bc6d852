"""Evaluation: a whole set answered by a run's weights as they stand, and how good the answers are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from noback.answers import Answers, Written, reward_score, rewards_of, side_by_side, text_score, with_any_right
from noback.engines import Writing
from noback.objectives import METRICS, TEXTS, accuracy, answer_loss, confusion, cross_entropy
from noback.run import Run
from noback.values import UNPERTURBED, Move, Score


def answers(run: Run, name: str) -> Answers:
    """The label logits of a whole set with the weights as they stand, its gold labels, and what was written."""
    objective, task = run.config.objective, run.task
    if objective.judges == TEXTS:
        written = _written(run, name)
        rewards = rewards_of(objective, task.questions(name), [one.text for one in written])
        return Answers(rewards, torch.zeros(len(rewards), dtype=torch.long), written)
    parts, gold, done = [], [], 0
    for batch in task.batches(name, run.config.batch):
        parts.append(run.engine.score(batch, [UNPERTURBED])[0])
        gold.append(batch.gold)
        done += len(batch)
        run.watcher.progress(f"answering the {name} set", done, task.size(name))
    logits = side_by_side(parts)
    return Answers(logits, with_any_right(logits, torch.cat(gold), task.rights(name)), _written(run, name))


def score(run: Run, name: str) -> Score:
    """Answer a whole set with the weights as they stand."""
    return score_of(run, answers(run, name))


def score_of(run: Run, answered: Answers, *, with_objective: bool = True) -> Score:
    """How good some answers are; the objective may be a function that is not at hand after the run."""
    logits, gold, written = answered
    if run.config.objective.judges == TEXTS:
        return reward_score(logits)
    objective = run.loss(logits, gold) if with_objective else None
    if written:
        return text_score(run.spec.metric, written, answer_loss(logits, gold), objective)
    predicted = logits.argmax(dim=1)
    return Score(
        accuracy=accuracy(predicted, gold),
        score=METRICS[run.spec.metric](predicted, gold),
        loss=cross_entropy(logits, gold),
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
    questions, size, texts = run.task.questions(name), run.config.batch, list[str]()
    for begin in range(0, len(questions), size):
        texts += write(run, [one.ids for one in questions[begin : begin + size]])[0]
        run.watcher.progress(f"writing answers to the {name} set", len(texts), len(questions))
    return tuple(Written(text, one.right) for text, one in zip(texts, questions, strict=True))

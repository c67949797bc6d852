"""Answers to what is asked, in its order: a few batches are held at a time, those of like length side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from noback.answers import scored
from noback.errors import InputError
from noback.evaluating import write
from noback.predictions.asking import Asked
from noback.run import Run

_BATCHES = 8  # held at a time: enough for rows of like length to find each other


class Answer(NamedTuple):
    """What a run's weights answer."""

    text: str  # the label, the choice, or what was written
    options: tuple[str, ...] = ()  # the labels, or the row's own choices; none where the answer is written
    chances: tuple[float, ...] = ()  # the probability of each
    number: int = 0  # of the answer among them, from 0
    shortened: bool = False  # whether the prompt was too long for the model


def answered(run: Run, asked: Iterable[Asked], *, at_once: int | None = None) -> Iterator[tuple[Asked, Answer]]:
    """Each example with its answer, in order; `at_once`: how many are waited for before the first is answered."""
    source, size = iter(asked), at_once or _BATCHES * run.config.batch
    while True:
        held, bad = _held(source, size)
        yield from zip(held, _answers(run, held), strict=True)
        if bad is not None:
            raise bad
        if len(held) < size:
            return


def _held(source: Iterator[Asked], size: int) -> tuple[list[Asked], InputError | None]:
    """The next examples, and what is wrong with the one after them: those before it are answered all the same."""
    held: list[Asked] = []
    try:
        for one in islice(source, size):
            held.append(one)
    except InputError as error:
        return held, error
    return held, None


def _answers(run: Run, held: Sequence[Asked]) -> list[Answer]:
    encoded = _encoded(run, held)
    order = sorted(range(len(held)), key=lambda index: len(encoded[index].ids))
    found: dict[int, Answer] = {}
    for begin in range(0, len(order), run.config.batch):
        places = order[begin : begin + run.config.batch]
        batch = [encoded[index] for index in places]
        if run.task.spec.answer == "text":
            answers = [Answer(text) for text in write(run, [one.ids for one in batch])[0]]
        else:
            options = [held[index].example.choices or run.task.spec.labels for index in places]
            answers = _chosen(run, batch, options)
        found |= zip(places, answers, strict=True)
    return [found[index]._replace(shortened=encoded[index].shortened) for index in range(len(held))]


def _chosen(run: Run, batch: Sequence[Any], options: Sequence[tuple[str, ...]]) -> list[Answer]:
    """The likeliest option of each example, as evaluation takes it."""
    logits = scored(run.engine, run.task.batched(batch))[0]
    chances, best = torch.softmax(logits.double(), dim=1).tolist(), logits.argmax(dim=1).tolist()
    return [
        Answer(names[index], names, tuple(row[: len(names)]), index)
        for names, row, index in zip(options, chances, best, strict=True)
    ]


def _encoded(run: Run, held: Sequence[Asked]) -> Sequence[Any]:
    """The examples as the model sees them; one that cannot be shown to it is named by its place."""
    try:
        return run.task.encode([one.example for one in held])
    except InputError:
        for one in held:
            try:
                run.task.encode([one.example])
            except InputError as error:
                raise InputError(f"{one.place} cannot be asked: {error}") from None
        raise

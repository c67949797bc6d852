"""Journals that are harmed at the level of bytes and of records, and what may come of it.

A harmed journal is an error, a true prefix that says it is one, or the whole run. Weights that are replayed from it are
those of the step they are named by, and the best step is that of the records it holds.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from noback.errors import NobackError
from noback.journal import EpsChange, Evaluation, Journal, Record, Seal, StepRecord, read_journal
from noback.replaying import recorded_move
from noback.rules import Sgd
from noback.weights import Weights
from tests.hostile.forging import records_in_order

RULE, SEED = Sgd(lr=1e-2), 7


@dataclass
class Truth:
    """A sound journal: its bytes, its records in order, and the weights after each step."""

    data: bytes
    begin: int
    size: int
    header: dict
    records: list[Record]
    sealed: bool
    weights: list[str] = field(default_factory=list)

    @property
    def packed(self) -> list[bytes]:
        return [self.data[at : at + self.size] for at in range(self.begin, len(self.data), self.size)]


def make_truths(folder: Path, rng: random.Random) -> list[Truth]:
    """Journals of several layouts: with evaluations and changes of eps, ended and stopped; some share their header."""
    made = []
    for number in range(6):
        directions, figures = (1, 2)[number % 2], ["spread"] if number == 3 else []
        steps, ended = (20, 12, 30)[number // 2], number not in (1, 4)
        header = {"directions": directions, "figures": figures, "config": {"steps": steps}, "base": "b"}
        path = folder / f"truth-{number}"
        journal = Journal.create(path, header)
        for record in _records(rng, steps if ended else steps - 5, directions, len(figures)):
            journal.append(_choosing(record, rng) if number not in (1, 2) else record)
        if ended:
            journal.append(Seal(steps))
        contents, data = read_journal(path), path.read_bytes()
        begin = contents.sound_bytes - contents.record_bytes * len(records_in_order(contents))
        truth = Truth(data, begin, contents.record_bytes, contents.header, records_in_order(contents), ended)
        truth.weights = replayed([one for one in truth.records if isinstance(one, StepRecord)])
        made.append(truth)
    return made


def _records(rng: random.Random, steps: int, directions: int, figures: int) -> list[Record]:
    def number() -> float:
        return float(torch.tensor(rng.uniform(-2, 2), dtype=torch.float32))

    def several(count: int) -> tuple[float, ...]:
        return tuple(number() for _ in range(count))

    found: list[Record] = []
    for step in range(steps):
        if step % 4 == 0:
            found.append(Evaluation(step, abs(number()) / 2, abs(number())))
        if step % 7 == 3:
            found.append(EpsChange(step, abs(number()) + 1e-3))
        found.append(StepRecord(step, abs(number()), several(directions), several(figures)))
    return [*found, Evaluation(steps, abs(number()) / 2, abs(number()))]


def _choosing(record: Record, rng: random.Random) -> Record:
    """The record; where it is an evaluation, perhaps chosen as the best from there on, as the first always is."""
    if not isinstance(record, Evaluation):
        return record
    return dataclasses.replace(record, chosen=record.step == 0 or rng.random() < 0.4)


def replayed(steps: list[StepRecord]) -> list[str]:
    """The digest of small weights after each of the steps."""
    weights = Weights({"a": torch.linspace(-1, 1, 15).view(5, 3), "b": torch.ones(4)})
    digests = [weights.digest()]
    for step in range(len(steps)):
        weights.advance([recorded_move(RULE, SEED, 100, steps, step, noise=weights.family)])
        digests.append(weights.digest())
    return digests


def harm(truth: Truth, others: list[Truth], rng: random.Random) -> bytes:
    """A journal with one to three things done to it."""
    data = truth.data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.5:
            data = _harm_bytes(data, others, rng)
        else:
            body = data[truth.begin :]
            records = [body[at : at + truth.size] for at in range(0, len(body), truth.size)]
            if records:
                data = data[: truth.begin] + b"".join(_harm_records(records, truth, others, rng))
    return data


def _harm_bytes(data: bytes, others: list[Truth], rng: random.Random) -> bytes:
    size = max(len(data), 1)
    at, length = rng.randrange(size), rng.choice((1, 4, 8, 24, 28, rng.randrange(1, 200)))
    end = min(at + length, size)
    other = rng.choice(others).data
    spot = rng.randrange(len(other))
    choice = rng.randrange(9)
    if choice == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if data else data
    return (
        lambda: data,
        lambda: data[:at] + rng.randbytes(end - at) + data[end:],
        lambda: data[:at] + data[end:],
        lambda: data[:at] + rng.randbytes(length) + data[at:],
        lambda: data[:end] + data[at:end] + data[end:],
        lambda: data[:at],
        lambda: data + rng.randbytes(length),
        lambda: data[: max(at, 200)] + other[max(at, 200) :],  # past the header, or it would be the other one
        lambda: data[:at] + other[spot : spot + length] + data[end:],
    )[choice]()


def _harm_records(records: list[bytes], truth: Truth, others: list[Truth], rng: random.Random) -> list[bytes]:
    found, at, to = list(records), rng.randrange(len(records)), rng.randrange(len(records))
    strangers = [one for other in others if other is not truth and other.size == truth.size for one in other.packed]
    choice = rng.randrange(10)
    if choice == 0:
        del found[at]
    elif choice == 1:
        found.insert(to, found[at])
    elif choice == 2:
        found[at], found[to] = found[to], found[at]
    elif choice == 3:
        found.insert(to, found.pop(at))
    elif choice == 4:
        found[min(at, to) : max(at, to)] = reversed(found[min(at, to) : max(at, to)])
    elif choice == 5 and strangers:
        found[at] = rng.choice(strangers)
    elif choice == 6:
        found = found[:at]
    elif choice == 7:
        kind = rng.choice((1, 2, 3, 4, 5)).to_bytes(4, "little")
        found = [one for one in found if one[:4] != kind]
    elif choice == 8:
        found = found[: min(at, to)] + found[max(at, to) :]
    else:
        found = [flipped(one) if rng.random() < 0.3 else one for one in found]
    return found


def flipped(record: bytes) -> bytes:
    """An evaluation that is chosen where it was not, or the other way; other records are left as they are."""
    kind = int.from_bytes(record[:4], "little")
    return {2: 5, 5: 2}.get(kind, kind).to_bytes(4, "little") + record[4:]


def judge(data: bytes, truth: Truth, path: Path) -> str:
    """What came of a journal's bytes; an AssertionError where it is none of what may."""
    path.write_bytes(data)
    try:
        contents = read_journal(path)
    except NobackError:
        return "error"
    held = records_in_order(contents)
    assert contents.header == truth.header
    assert held == truth.records[: len(held)], "records that were never written in this order"
    digests = replayed(contents.steps)
    assert digests == truth.weights[: len(digests)], "other weights than those of the step they are named by"
    whole = len(held) == len(truth.records)
    best = contents.best()
    evaluations = [one for one in truth.records[: len(held)] if isinstance(one, Evaluation)]
    assert best == _best_of(evaluations), "another best"
    assert contents.sealed == (whole and truth.sealed)
    if whole:
        return "whole"
    assert contents.warning() is not None, "a prefix that does not say it is one"
    return "prefix"


def _best_of(evaluations: list[Evaluation]) -> Evaluation | None:
    """The one chosen last; where none is, the highest score, the lowest loss among equals, then the earliest."""
    chosen = [one for one in evaluations if one.chosen]
    return chosen[-1] if chosen else max(evaluations, key=lambda one: (one.score, -one.loss, -one.step), default=None)


def fuzz_journals(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Harm `count` journals; how often each outcome was seen."""
    rng = random.Random(seed)
    truths, outcomes = make_truths(folder, rng), Counter[str]()
    for number in range(count):
        truth = rng.choice(truths)
        data = harm(truth, truths, rng)
        try:
            outcomes[judge(data, truth, folder / "harmed")] += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {error!r}") from error
    return dict(outcomes)

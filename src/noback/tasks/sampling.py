"""Which examples train, validate and test: the k-shot protocol of the paper, and sets balanced by label."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from noback.errors import InputError
from noback.tasks.data import Example, Splits
from noback.tasks.overlap import Overlaps, overlaps
from noback.tasks.spec import TaskSpec

_TEST_SEED = 42  # the protocol draws the test set with this seed, whatever the data seed


@dataclass(frozen=True, slots=True)
class Drawn:
    """The three sets of a run, and what was done to get them, in sentences."""

    splits: Splits
    notes: tuple[str, ...]
    preamble: str = ""  # what stands before every prompt: demonstrations
    overlaps: Overlaps = Overlaps()  # what the sets have in common


def draw(found: Splits, spec: TaskSpec, shots: int | None, seed: int, limit: int) -> Drawn:
    """Train, validation and test by the protocol: k per label, the next k per label, the test set cut to `limit`."""
    notes: list[str] = []
    if len(found) > 1 and "train" not in found:
        raise InputError(f"the data has no train split (it has {', '.join(found)}); training needs one")
    for name, examples in found.items():
        check_labels(name, examples, spec)
    test, pool = draw_test(found, limit, notes)
    pool = [pool[index] for index in np.random.RandomState(seed).permutation(len(pool))]
    if "test" in found and "validation" in found:
        train = pool if shots is None else _per_label(pool, spec, 0, shots, "train")
        held = shuffled(found["validation"], seed)
        validation = balanced(held, min(limit, shots * _kinds(spec) if shots else limit))
        if len(validation) < len(held):
            notes.append(f"validation: {len(validation)} of {len(held)} examples, balanced by label")
    elif shots is not None:
        train = _per_label(pool, spec, 0, shots, "train")
        validation = _per_label(pool, spec, shots, 2 * shots, "validation")
        each = " per label" if spec.labels else ""
        notes.append(f"validation: the next {shots} examples{each} of train")
    else:
        validation = balanced(pool, min(limit, max(len(pool) // 10, min(2 * _kinds(spec), len(pool) // 2))))
        taken = set(map(id, validation))
        train = [example for example in pool if id(example) not in taken]
        notes.append(f"validation: {len(validation)} examples held out of train")
    splits = {"train": train, "validation": validation, "test": test}
    for name, examples in splits.items():
        check_labels(name, examples, spec)
    found_twice = overlaps(splits)
    return Drawn(splits, (*notes, *found_twice.notes), overlaps=found_twice)


def draw_test(found: Splits, limit: int, notes: list[str]) -> tuple[list[Example], list[Example]]:
    """The test set, and what is left for training."""
    if len(found) == 1:
        (pool,) = found.values()
        test = balanced(_half(shuffled(pool, _TEST_SEED)), min(limit, max(len(pool) // 3, 1)))
        taken = set(map(id, test))
        notes.append(f"there is one file only: {len(test)} examples of it, by seed {_TEST_SEED}, are the test set")
        return test, [example for example in pool if id(example) not in taken]
    name = "test" if "test" in found else "validation"
    if name != "test":
        notes.append("there is no test split: by the protocol the dev split is the test set")
    test = found[name]
    if len(test) > limit:
        notes.append(
            f"test: {limit} of {len(test)} examples of {name}, balanced by label, drawn with seed {_TEST_SEED}"
        )
        test = balanced(shuffled(test, _TEST_SEED), limit)
    return test, found.get("train", [])


def shuffled(examples: list[Example], seed: int) -> list[Example]:
    """The examples in an order that depends on the seed only."""
    return [examples[index] for index in np.random.RandomState(seed).permutation(len(examples))]


def balanced(examples: list[Example], size: int) -> list[Example]:
    """The first `size` examples, taken in turn from each label; all of them where there are no more."""
    if len(examples) <= size:
        return examples
    turn: Counter[int] = Counter()
    order = []
    for position, example in enumerate(examples):
        order.append((turn[example.gold], position))
        turn[example.gold] += 1
    chosen = sorted(position for _, position in sorted(order)[:size])
    return [examples[position] for position in chosen]


def _half(examples: list[Example]) -> list[Example]:
    """The first half of each label's examples: a balanced test set leaves a rare label's other half to training."""
    left = {gold: max(count // 2, 1) for gold, count in Counter(example.gold for example in examples).items()}
    taken = []
    for example in examples:
        if left[example.gold]:
            left[example.gold] -= 1
            taken.append(example)
    return taken


def check_labels(name: str, examples: list[Example], spec: TaskSpec) -> None:
    """Refuse a set that holds one label only: its accuracy would say nothing."""
    if examples and not spec.labels:
        return
    present = {example.gold for example in examples}
    if len(present) < 2:
        what = f"only the label {spec.labels[present.pop()]!r}" if present else "no examples"
        raise InputError(
            f"the {name} set holds {what} ({len(examples)} examples); expected at least two labels, "
            "or its accuracy would mean nothing: check the file's order and its label column"
        )


def _kinds(spec: TaskSpec) -> int:
    """By how many kinds of examples shots are counted: the labels, or all examples as one kind."""
    return max(len(spec.labels), 1)


def _per_label(pool: list[Example], spec: TaskSpec, first: int, last: int, name: str) -> list[Example]:
    if not spec.labels:
        if len(pool) < last:
            raise InputError(
                f"train has {len(pool)} examples; {name} needs number {first + 1} to {last}: use fewer shots"
            )
        return pool[first:last]
    by_label: dict[int, list[Example]] = defaultdict(list)
    for example in pool:
        by_label[example.gold].append(example)
    chosen = []
    for gold, label in enumerate(spec.labels):
        if len(by_label[gold]) < last:
            raise InputError(
                f"label {label!r} has {len(by_label[gold])} examples in train; "
                f"{name} needs number {first + 1} to {last} of them: use fewer shots"
            )
        chosen += by_label[gold][first:last]
    return chosen

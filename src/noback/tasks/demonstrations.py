"""Demonstrations: examples with their right answers, shown before every prompt of a causal task."""

from __future__ import annotations

from dataclasses import replace

from noback.errors import InputError
from noback.tasks.data import Example
from noback.tasks.sampling import Drawn, balanced
from noback.tasks.spec import TaskSpec

_APART = "\n\n"


def with_demonstrations(drawn: Drawn, spec: TaskSpec, count: int) -> Drawn:
    """The sets without the training examples that become demonstrations, each label as often as can be."""
    if not spec.is_causal:
        raise InputError(f"demonstrations are for causal models; task {spec.name!r} is for masked ones")
    if not spec.label:
        raise InputError(f"task {spec.name!r} names no label, so no example of it can be shown with its right answer")
    train = drawn.splits["train"]
    if len(train) <= count:
        raise InputError(f"{count} demonstrations leave nothing of the {len(train)} examples to train on; use fewer")
    shown = balanced(train, count)
    taken = set(map(id, shown))
    rest = [example for example in train if id(example) not in taken]
    text = "".join(demonstration(example, spec) + _APART for example in shown)
    note = f"demonstrations: {count} examples of train stand before every prompt and are not trained on"
    splits = {**drawn.splits, "train": rest}
    return replace(drawn, splits=splits, notes=(*drawn.notes, note), preamble=spec.preamble + text)


def demonstration(example: Example, spec: TaskSpec) -> str:
    """An example as its prompt and its right answer."""
    if spec.answer == "text":
        answer = example.accepted[0]
    elif spec.answer == "choices":
        answer = spec.rendered_choice(example.sentences, example.choices[example.gold])
    else:
        answer = spec.words[spec.labels[example.gold]]
    return replace(spec, preamble="").rendered(example.sentences) + spec.asked.glue + answer

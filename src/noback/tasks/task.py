"""A task ready to run: its examples drawn, encoded for one tokenizer, and dealt out in batches."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from noback.embedded import DATA
from noback.errors import InputError, shown
from noback.inputs import check_text
from noback.tasks.balancing import balanced_places
from noback.tasks.braces import renamed as renamed_template
from noback.tasks.causal import CausalEncoder, EncodedPrompt
from noback.tasks.data import Example, read_data, unused_files
from noback.tasks.demonstrations import with_demonstrations
from noback.tasks.encoding import Batch, Encoded, Encoder
from noback.tasks.label_words import label_word_ids
from noback.tasks.overlap import Overlaps, fingerprint
from noback.tasks.own import own_name, with_own
from noback.tasks.sampling import Drawn, check_labels, draw, draw_test
from noback.tasks.spec import TaskSpec, load_spec


class Question(NamedTuple):
    """What a written answer answers."""

    ids: list[int]  # the prompt
    row: dict[str, str]  # the columns that the prompt shows
    right: tuple[str, ...]  # the right answers, where any is known


class Task:
    """Examples encoded once; `batch(step)` is a pure function of the seed and the step."""

    def __init__(
        self, spec: TaskSpec, tokenizer: Any, model_limit: int | None = None, *, for_head: bool = False
    ) -> None:
        """`for_head`: the examples are for a classifier, which needs neither prompt nor label words."""
        self.spec, self._tokenizer, self._limit = spec, tokenizer, model_limit
        self.texts = list(spec.labels if for_head else spec.words.values())  # what an answer reads like
        self.notes: tuple[str, ...] = ()
        self.overlaps = Overlaps()
        self.word_ids: list[int] | None = None  # none: a head is read, or continuations, as a batch says
        self._encoder: Any  # one of two: their encoded examples are of two kinds
        if spec.is_causal and not for_head:
            self._encoder = CausalEncoder(spec, tokenizer, model_limit)
            self.word_ids = self._encoder.word_ids
        else:
            self.word_ids = None if for_head else label_word_ids(spec.words, tokenizer)
            self._encoder = Encoder(spec, tokenizer, model_limit, for_head=for_head)
        self._sets: dict[str, list[Encoded] | list[EncodedPrompt]] = {}
        self._examples: dict[str, list[Example]] = {}

    def use(self, drawn: Drawn) -> None:
        """Encode the sets that were drawn for a run, and take over the demonstrations that stand before them."""
        self.notes, self.overlaps = drawn.notes, drawn.overlaps
        if drawn.preamble:
            self.spec = replace(self.spec, preamble=drawn.preamble)
            self._encoder = CausalEncoder(self.spec, self._tokenizer, self._limit)
        for name, examples in drawn.splits.items():
            self.add(name, examples)

    def digest(self) -> str:
        """BLAKE2b over what the sets became: another template, label word, tokenizer or line of data shows."""
        total = hashlib.blake2b(repr(self.word_ids).encode(), digest_size=16)
        for name, encoded in sorted(self._sets.items()):
            total.update(repr((name, [one.identity for one in encoded])).encode())
        return total.hexdigest()

    def add(self, name: str, examples: list[Example]) -> None:
        """Encode a set under a name."""
        self._sets[name], self._examples[name] = self._encoder.encode(examples), examples
        shortened = sum(example.shortened for example in self._sets[name])
        if shortened:
            self.notes += (f"{name}: {shortened} of {len(examples)} prompts were shortened to fit",)

    def size(self, name: str) -> int:
        """How many examples a set has."""
        return len(self._sets[name])

    def balance(self, name: str) -> list[int]:
        """How many examples of a set have each label; empty where the answers are no labels."""
        counts = Counter(example.gold for example in self._examples[name])
        return [counts[index] for index in range(len(self.spec.labels))]

    def sentences(self, name: str) -> list[tuple[str, ...]]:
        """The sentences of a set, in the order of its batches."""
        return [self._examples[name][index].sentences for index in self._by_length(name)]

    def options(self, name: str) -> list[tuple[str, ...]]:
        """The texts that each example of a set may be answered with, in the order of its batches."""
        examples = (self._examples[name][index] for index in self._by_length(name))
        return [example.choices or tuple(self.texts) for example in examples]

    def has(self, name: str) -> bool:
        """Whether there is a set of this name."""
        return name in self._sets

    def fingerprints(self, name: str) -> list[bytes]:
        """What tells the examples of a set from others, by their text."""
        return [fingerprint(example.sentences) for example in self._examples[name]]

    def rights(self, name: str, every: int = 1) -> list[tuple[int, ...]]:
        """Every right choice of each example of a set, where rows bring their own, in the order of its batches."""
        return [self._examples[name][index].right for index in self._by_length(name)[::every]]

    def questions(self, name: str) -> list[Question]:
        """The questions of a set whose answers are written, in the order of its batches."""
        return self._questions(name, self._by_length(name))

    def step_questions(self, step: int, size: int, seed: int, *, balanced: bool = False) -> list[Question]:
        """The questions of a step: those of its batch."""
        return self._questions("train", self._chosen(step, size, seed, balanced=balanced))

    def _questions(self, name: str, places: Sequence[int]) -> list[Question]:
        columns, found = self.spec.sentences, [(self._sets[name][at], self._examples[name][at]) for at in places]
        return [
            Question(encoded.ids, dict(zip(columns, example.sentences, strict=True)), example.accepted)
            for encoded, example in found
        ]

    def asked(self, texts: Sequence[str | tuple[str, ...]]) -> list[list[int]]:
        """Unlabelled texts as the tokens of their prompts."""
        return [encoded.ids for encoded in self.encode([self.unlabelled(text) for text in texts])]

    def batch(self, step: int, size: int, seed: int, *, answer_only: bool = False, balanced: bool = False) -> Batch:
        """The training batch of a step: a walk through a new order of the examples each epoch.

        `answer_only`: of each example's candidates, the right one alone. `balanced`: the labels in equal shares.
        """
        train: Any = self._sets["train"]
        chosen = [train[index] for index in self._chosen(step, size, seed, balanced=balanced)]
        return self.batched([one.answered() for one in chosen] if answer_only else chosen)

    def _chosen(self, step: int, size: int, seed: int, *, balanced: bool) -> list[int]:
        """Which training examples a step's batch holds."""
        total = len(self._sets["train"])
        size = min(size, total)
        if balanced:
            return balanced_places([example.gold for example in self._examples["train"]], step, size, seed)
        places = (divmod(position, total) for position in range(step * size, (step + 1) * size))
        return [int(_order(seed, epoch, total)[index]) for epoch, index in places]

    def batches(self, name: str, size: int, *, every: int = 1, instead: str | None = None) -> Iterator[Batch]:
        """A whole set, or one in so many of its examples, in batches of like length, which need little padding.

        `instead`: of a causal task, the same candidates after prompts in which this text stands for every column.
        """
        order, encoded = self._by_length(name)[::every], self._sets[name]
        if instead is not None:
            encoded = self._encoder.encode(self._examples[name], instead)
        for begin in range(0, len(order), size):
            yield self.batched([encoded[index] for index in order[begin : begin + size]])

    def batched(self, encoded: Sequence[Encoded | EncodedPrompt]) -> Batch:
        """Encoded examples side by side."""
        batch: Batch = self._encoder.batch(encoded)
        return batch

    def _by_length(self, name: str) -> list[int]:
        encoded = self._sets[name]
        return sorted(range(len(encoded)), key=lambda index: len(encoded[index].ids))

    def prompts(self, texts: Sequence[str | tuple[str, ...]]) -> Batch:
        """Unlabelled texts as one batch; a text of several sentences is a tuple, its choices after them."""
        return self.batched(self.encode([self.unlabelled(text) for text in texts]))

    def encode(self, examples: Sequence[Example]) -> list[Encoded] | list[EncodedPrompt]:
        """Examples as the model sees them; no set keeps them."""
        encoded: list[Encoded] | list[EncodedPrompt] = self._encoder.encode(examples)
        return encoded

    def unlabelled(self, text: str | Sequence[str]) -> Example:
        """A text, or the sentences of one and its choices after them, as an example that is to be answered."""
        parts = (text,) if isinstance(text, str) else tuple(text)
        needed, choosing = len(self.spec.sentences), self.spec.answer == "choices"
        if len(parts) < needed + 2 if choosing else len(parts) != needed:
            more = " and at least two choices" if choosing else ""
            raise InputError(
                f"text {shown(parts[0] if parts else '')} has {len(parts)} sentences; "
                f"task {self.spec.name!r} needs {needed}{more} (on the command line, parted by a tab)"
            )
        for part in parts:
            check_text("a text to answer", part)
        return Example(parts[:needed], 0, parts[needed:])


def spec_for(
    task: str,
    columns: str | None = None,
    template: str | None = None,
    words: str | Mapping[str, str] | Mapping[int, str] | None = None,
    data: str | None = None,
) -> TaskSpec:
    """The task's specification with one's own template and words, its columns renamed where `columns` says so."""
    spec = load_spec(task)
    if template is not None or words is not None:
        spec = with_own(spec, template, words, own_name(task, data, template, words))
    if columns is None:
        return spec
    if (
        template is not None and "{" in template and "," not in columns and spec.label
    ):  # the template has named the others
        columns = ",".join([*spec.columns[:-1], columns])
    return with_columns(spec, columns)


def with_columns(spec: TaskSpec, columns: str) -> TaskSpec:
    """The specification for data whose columns have other names: sentences first, then choices, the label last."""
    names = tuple(name.strip() for name in columns.split(","))
    if len(names) != len(spec.columns):
        choices = f", {len(spec.choices)} for its choices" if spec.choices else ""
        label = " and one for the label" if spec.label else ""
        raise InputError(
            f"columns {columns!r} names {len(names)} columns; task {spec.name!r} needs "
            f"{len(spec.sentences)} for its sentences{choices}{label}"
        )
    if not all(names):
        raise InputError(f"columns {columns!r} has an empty name; expected the name of each column")
    if len(set(zip(names, spec.columns, strict=True))) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"columns {columns!r} names {twice!r} twice; expected another column for each")
    renamed = dict(zip(spec.columns, names, strict=True))
    if not spec.is_causal and spec.parsed.columns:
        return replace(spec, template=renamed_template(spec.template, renamed), sentences=(), label=names[-1])
    if not spec.is_causal:
        return replace(spec, sentences=names[:-1], label=names[-1])
    return replace(
        spec,
        prompt=spec.asked.renamed(renamed),
        continuation=spec.continuation and spec.continued.renamed(renamed),
        sentences=(),
        choices=tuple(renamed[column] for column in spec.choices),
        replace={renamed[column]: table for column, table in spec.replace.items()},
        label=names[-1] if spec.label else "",
    )


def draw_examples(
    spec: TaskSpec, data: str | None, shots: int | None, seed: int, limit: int, *, demonstrations: int | None = None
) -> Drawn:
    """Train, validation and test from some data (none: the embedded) by the protocol; demonstrations are of train."""
    source = _source(data, spec)
    drawn = draw(read_data(source, spec), spec, shots, seed, limit)
    drawn = replace(drawn, notes=(*unused_files(source), *drawn.notes))
    return drawn if demonstrations is None else with_demonstrations(drawn, spec, demonstrations)


def read_split(spec: TaskSpec, data: str | None, split: str, limit: int | None) -> tuple[list[Example], list[str]]:
    """One split of some data for evaluation, by the same rules as in training, and what was done to get it."""
    source = _source(data, spec)
    found, notes = read_data(source, spec), unused_files(source)
    if len(found) == 1 and "train" not in found:  # one file: the split that is asked for
        (examples,) = found.values()
    elif split == "test":
        examples, _ = draw_test(found, limit or sum(map(len, found.values())), notes)
    elif split in found:
        examples = found[split]
    else:
        raise InputError(f"the data has no split {split!r}; it has {', '.join(found)}")
    check_labels(split, examples, spec)
    return examples, notes


def _source(data: str | None, spec: TaskSpec) -> str:
    if data is not None:
        return data
    if spec.name in DATA:
        return str(DATA[spec.name])
    raise InputError(
        f"task {spec.name!r} needs data: --data FILE or FOLDER with the columns "
        f"{', '.join(spec.columns)}, or --data hf:NAME"
    )


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """An order of `size` examples; the legacy generator's streams are frozen, so it holds for ever."""
    digest = hashlib.blake2s(f"batch order {seed} {epoch}".encode(), digest_size=4).digest()
    return np.random.RandomState(int.from_bytes(digest, "little")).permutation(size)

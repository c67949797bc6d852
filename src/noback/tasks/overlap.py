"""Examples that stand in two sets of a run, exactly or nearly, and texts that stand with two labels."""

from __future__ import annotations

import hashlib
import string
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from noback.tasks.data import Example

# Where a set's examples must not be found, and what it spoils where they are.
_PAIRS = {
    ("test", "train"): "the test score is flattered",
    ("validation", "train"): "the validation score is flattered",
    ("test", "validation"): "the best step is chosen by examples of the test",
}
_APART = "\x1f"  # between the sentences of an example


@dataclass(frozen=True, slots=True)
class Shared:
    """How many examples of a set are in another set too."""

    of: str  # the set whose examples are counted
    within: str  # the set in which they are found
    examples: int  # in the first set
    exact: int
    near: int  # the same but for case, space or punctuation

    @property
    def note(self) -> str:
        """What was found, what it spoils and what to do."""
        return (
            f"{self.exact + self.near} of {self.examples} {self.of} examples are in {self.within} too ({self.exact} "
            f"exactly, {self.near} but for case, space or punctuation): {_PAIRS[self.of, self.within]}; "
            "remove them from one of the two"
        )


@dataclass(frozen=True, slots=True)
class Overlaps:
    """What the sets of a run have in common; empty where they have nothing."""

    shared: tuple[Shared, ...] = ()
    two_labels: int = 0  # texts that stand with more than one label

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each thing that was found."""
        labels = f"texts with more than one label: {self.two_labels}; whatever the model answers to them, some of it "
        labels += "counts as wrong: correct the labels"
        return (*(one.note for one in self.shared), *([labels] if self.two_labels else []))

    def table(self) -> dict[str, Any]:
        """The counts as metrics hold them."""
        return asdict(self)


def overlaps(splits: Mapping[str, Sequence[Example]]) -> Overlaps:
    """What train, validation and test have in common."""
    known = {name: [fingerprint(one.sentences) for one in examples] for name, examples in splits.items()}
    found = [_shared(splits, known, *pair) for pair in _PAIRS if set(pair) <= set(splits)]
    labels: dict[bytes, set[int]] = defaultdict(set)
    for name, examples in splits.items():
        for mark, example in zip(known[name], examples, strict=True):
            if not (example.choices or example.accepted):
                labels[mark].add(example.gold)
    twice = sum(len(golds) > 1 for golds in labels.values())
    return Overlaps(tuple(one for one in found if one.exact or one.near), twice)


def _shared(
    splits: Mapping[str, Sequence[Example]], known: Mapping[str, Sequence[bytes]], of: str, within: str
) -> Shared:
    texts, marks = {example.sentences for example in splits[within]}, set(known[within])
    exact = sum(example.sentences in texts for example in splits[of])
    return Shared(of, within, len(splits[of]), exact, sum(mark in marks for mark in known[of]) - exact)


def fingerprint(sentences: Sequence[str]) -> bytes:
    """Eight bytes that are the same for texts that differ in case, space or punctuation alone."""
    text = _APART.join(map(_normalised, sentences))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _normalised(sentence: str) -> str:
    """NFKC, without case, punctuation and repeated space; a sentence of punctuation alone keeps it."""
    plain = unicodedata.normalize("NFKC", sentence).casefold()
    return " ".join(plain.translate(_PUNCTUATION).split()) or " ".join(plain.split())


class _Punctuation(dict[int, int | None]):
    """What becomes of each letter: punctuation goes. Symbols and marks stay: they carry meaning in many scripts."""

    def __missing__(self, letter: int) -> int | None:
        goes = chr(letter) in string.punctuation or unicodedata.category(chr(letter)).startswith("P")
        return self.setdefault(letter, None if goes else letter)


_PUNCTUATION = _Punctuation()

"""Metrics of written answers: a text against the texts that are right, as SQuAD compares them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """In lower case, without punctuation and articles, words parted by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def exact_match(text: str, accepted: Sequence[str]) -> float:
    """1 where the text is one of the right ones, normalised; 0 otherwise."""
    return float(normalised(text) in {normalised(one) for one in accepted})


def token_f1(text: str, accepted: Sequence[str]) -> float:
    """The F1 of the words that the text shares with a right one; the best over the right ones."""
    return max((_f1(normalised(text).split(), normalised(one).split()) for one in accepted), default=0.0)


def _f1(words: list[str], right: list[str]) -> float:
    if not words or not right:  # a text without words is right where no words are asked for
        return float(words == right)
    shared = (Counter(words) & Counter(right)).total()
    return 2 * shared / (len(words) + len(right))


TEXT_METRICS = {"exact_match": exact_match, "token_f1": token_f1}

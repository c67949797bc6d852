"""A task proposed by looking at data: which columns hold text and label, and a word for each label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noback.errors import InputError, shown
from noback.inputs import whole_number_in
from noback.tasks.causal import CausalEncoder
from noback.tasks.data import numbers_first, value_at
from noback.tasks.label_words import label_word_ids
from noback.tasks.spec import TaskSpec

_LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "topic", "stars", "rating", "intent", "gold",
)  # fmt: skip
_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("question", "passage"), ("text1", "text2"),
)  # fmt: skip
_SCALED = ("stars", "rating", "score", "sentiment")  # columns whose numbers go from bad to good
_SCALES = {
    2: ("terrible", "great"), 3: ("terrible", "okay", "great"), 4: ("terrible", "bad", "good", "great"),
    5: ("terrible", "bad", "okay", "good", "great"),
}  # fmt: skip
_SHORT = {
    "pos": ("positive", "good"), "neg": ("negative", "bad"), "neu": ("neutral", "okay"), "y": ("Yes",), "n": ("No",),
    "true": ("Yes",), "false": ("No",),
}  # fmt: skip
_MEANT = {
    "positive": ("great", "good"), "negative": ("terrible", "bad"), "neutral": ("okay",), "entailment": ("Yes",),
    "not_entailment": ("No",), "contradiction": ("No",), "ham": ("normal",), "spam": ("junk",),
}  # fmt: skip
_MOST_LABELS, _LONGEST_LABEL = 32, 40  # values of a column that is taken for the label's, and their characters
_MOST_NAMED = 100  # labels of a column that a person names


@dataclass(frozen=True, slots=True)
class Proposal:
    """What was found in the data, and a word for each label; an empty one where a person has to choose."""

    texts: tuple[str, ...]
    label: str
    others: tuple[str, ...]  # columns that the task does not use
    counts: Mapping[str, int]  # label -> rows
    words: Mapping[str, str]
    reasons: Mapping[str, str]  # label -> how its word was found

    def template(self, *, causal: bool) -> str:
        """A prompt for the label word: what stands before it, and for masked models the mask and what follows."""
        if len(self.texts) == 2 and "Yes" in self.words.values():
            first, second = self.texts
            asked = f"{{{first}}}\nQuestion: {{{second}}} Yes or No?\nAnswer:"
            return asked if causal else f"{{{first}:.}}? {{mask}}, {{{second}}}"
        lead = "It was" if "a scale" in self.reasons.values() else "This is"
        text = " ".join([*("{" + column + "}" for column in self.texts), lead])
        return text if causal else f"{text} {{mask}}."


def proposal(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], fits: Callable[[str], bool]) -> Proposal:
    """A proposal for rows; `columns`: texts and label where a person names them; `fits`: whether a word may serve."""
    names = [name for name in rows[0] if isinstance(name, str) and name]
    for name in columns:
        if name not in names:
            raise InputError(f"the data has no column {shown(name)} (it has: {', '.join(names)}); name another")
    label = columns[-1] if columns else _label_column(rows, names)
    texts = tuple(columns[:-1]) or _text_columns(rows, [name for name in names if name != label])
    for name in texts:
        if set(name) & set("{}:"):
            raise InputError(f"column {shown(name)} cannot stand in braces; give it a name without {{, }} and :")
    counts = Counter(_values(rows, label))
    if not 2 <= len(counts) <= _MOST_NAMED:
        raise InputError(
            f"column {label!r} has {len(counts):,} different values; expected from 2 to {_MOST_NAMED} labels"
        )
    ordered = numbers_first(counts)
    chosen = _chosen_words(ordered, label, fits)
    others = tuple(name for name in names if name not in (*texts, label))
    words, reasons = ({one: found[part] for one, found in chosen.items()} for part in (0, 1))
    return Proposal(texts, label, others, {one: counts[one] for one in ordered}, words, reasons)


def one_token(tokenizer: Any, *, causal: bool) -> Callable[[str], bool]:
    """Whether a word is one token of a model's, where the label word stands."""
    asking = TaskSpec("new", prompt="{text} This is", metric="token_f1", max_new_tokens=1)
    encoder = CausalEncoder(asking, tokenizer) if causal else None

    def fits(word: str) -> bool:
        try:
            return len(encoder.continuations([word])[0] if encoder else label_word_ids({"": word}, tokenizer)) == 1
        except InputError:
            return False

    return fits


def _values(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """The texts and numbers of a column, as labels are compared."""
    values = (value_at(row, column) for row in rows)
    return [str(value).strip() for value in values if isinstance(value, (str, int, float)) and str(value).strip()]


def _label_column(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The column that looks like a label's: by its name, else the one with the fewest values."""
    found: dict[str, int] = {}
    for name in names:
        values = _values(rows, name)
        distinct = set(values)
        few = 2 <= len(distinct) <= min(_MOST_LABELS, len(values) // 2)
        if few and max(map(len, distinct)) <= _LONGEST_LABEL:
            found[name] = len(distinct)
    if not found:
        raise InputError(
            f"no column of the data looks like a label's, with 2 to {_MOST_LABELS} short values that come again "
            f"(it has: {', '.join(names)}); name the columns with --columns TEXT[,TEXT],LABEL"
        )
    named = sorted((_LABELS.index(name.lower()), name) for name in found if name.lower() in _LABELS)
    return named[0][1] if named else min(reversed(found), key=lambda name: found[name])


def _text_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, ...]:
    """The columns that look like text: a known pair, else the one with the longest values."""
    for pair in _PAIRS:
        if set(pair) <= set(names):
            return pair
    lengths = {name: sum(map(len, _values(rows, name))) for name in names}
    if not any(lengths.values()):
        raise InputError("no column of the data looks like text; name the columns with --columns TEXT[,TEXT],LABEL")
    return (max(lengths, key=lambda name: lengths[name]),)


def _chosen_words(labels: Sequence[str], column: str, fits: Callable[[str], bool]) -> dict[str, tuple[str, str]]:
    """A word for each label, and how it was found; no word twice."""
    scale = _SCALES.get(len(labels)) if column.lower() in _SCALED else None
    if scale and all(whole_number_in(label) is not None for label in labels) and all(map(fits, scale)):
        return {label: (word, "a scale") for label, word in zip(labels, scale, strict=True)}
    found: dict[str, tuple[str, str]] = {}
    shared = {part for part, count in Counter(part for label in labels for part in _parts(label)).items() if count > 1}
    taken: set[str] = set()
    for label in labels:
        candidates = _candidates(label, _parts(label) - shared)
        ways = ((word, why) for word, why in candidates if word.lower() not in taken and fits(word))
        found[label] = next(ways, ("", "none: choose one"))
        taken.add(found[label][0].lower())
    return found


def _parts(label: str) -> set[str]:
    """The words of a label's name."""
    return set(re.findall(r"[^\W\d_]{3,}", label.lower()))


def _candidates(label: str, parts: set[str]) -> list[tuple[str, str]]:
    """Words that may stand for a label, best first; a number says nothing of its meaning."""
    if re.fullmatch(r"[-+.\d]*", label):
        return []
    meant = label.lower().replace(" ", "_")
    return [
        *((word, "a usual word for it") for word in _SHORT.get(meant, ())),
        *((word, "its own name") for word in (label, label.lower())),
        *((word, "a usual word for it") for word in _MEANT.get(meant, ())),
        *((part, "a part of its name") for part in sorted(parts, key=label.lower().index)),
    ]

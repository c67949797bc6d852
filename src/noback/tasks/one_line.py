"""Label words and templates as one line of text: `0=terrible,1=great`, and what such a line may not hold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from noback.errors import InputError, shown

UNKNOWN = "..."  # stands for a word that a person has to choose
_PART = r'(\s*"(?:[^"]|"")*"\s*|[^,="]*)'
_PAIR = re.compile(f"{_PART}={_PART}(,|$)")


def words_of(words: str | Mapping[str, str] | Mapping[int, str]) -> dict[str, str]:
    """The label words by label, from `LABEL=WORD` pairs with commas between or from a table."""
    pairs = [(_as_text(label), word) for label, word in words.items()] if isinstance(words, Mapping) else _pairs(words)
    found: dict[str, str] = {}
    taken: dict[str, str] = {}  # word -> its label
    for label, given in pairs:
        _check_pair(label, given)
        if label in found:
            raise InputError(f"words name the label {shown(label)} twice; expected each label once")
        word = given.lstrip(" ")  # it is looked up with the space before it
        if word in taken:
            raise InputError(
                f"words give the labels {shown(taken[word])} and {shown(label)} the same word {shown(word)}; "
                "choose another for one of them"
            )
        found[label], taken[word] = word, label
    return found


def words_text(words: str | Mapping[str, str] | Mapping[int, str]) -> str:
    """Label words on one line, as `words_of` reads them; a text is checked and given back in its usual form."""
    return listed(words_of(words))


def listed(words: Mapping[str, str]) -> str:
    """Pairs of label and word with commas between; what holds a comma, a quote or an equals sign stands in quotes."""
    return ",".join(f"{_quoted(label)}={_quoted(word)}" for label, word in words.items())


def check_line(name: str, text: str) -> None:
    """Refuse a text with control characters other than a tab and a line feed."""
    found = next((one for one in text if unicodedata.category(one) == "Cc" and one not in "\t\n"), None)
    if found is not None:
        raise InputError(f"{name} is {shown(text)}, which holds a control character; expected plain text")


def _pairs(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    end = 0
    while end < len(text) or not found or text[end - 1] == ",":
        pair = _PAIR.match(text, end)
        if pair is None:
            raise InputError(
                f"words is {shown(text)}, which cannot be read from character {end + 1} on; expected LABEL=WORD with "
                'commas between, such as "0=terrible,1=great", and quotes around a text with a comma or an ='
            )
        found.append((_unquoted(pair[1]), _unquoted(pair[2])))
        end = pair.end()
    return found


def _as_text(label: Any) -> Any:
    """A label as the data holds it: a whole number is a text there."""
    return str(label) if isinstance(label, int) and not isinstance(label, bool) else label


def _check_pair(label: Any, word: Any) -> None:
    for name, text in (("a label", label), ("a word", word)):
        if not isinstance(text, str):
            raise InputError(f"words hold {shown(text)} as {name}; expected a text")
        if any(unicodedata.category(one) == "Cc" for one in text):
            raise InputError(f"words hold {shown(text)} as {name}, with a control character; expected plain text")
    if not label.strip():
        raise InputError(f"words have no label for the word {shown(word)}; expected LABEL=WORD")
    if not word.strip():
        raise InputError(f"words have no word for the label {shown(label)}; expected LABEL=WORD")
    if word.strip() == UNKNOWN:
        raise InputError(f"words have {UNKNOWN} for the label {shown(label)}; put a word of yours in its place")


def _quoted(text: str) -> str:
    if text and text == text.strip() and not set(text) & set(',="'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1].replace('""', '"') if text.startswith('"') else text

"""The template language: pieces between `*` that turn an example's sentences into a prompt with one mask.

| piece | meaning |
|---|---|
| `cls`, `mask`, `sep+` | special tokens of the model |
| `sent_0`, `sent_1` | a sentence |
| `+sent_0` | the sentence after a space |
| `sent-_0` | the sentence without its last character |
| `sentl_0`, `+sentl_0` | its first letter in lower case; the same after a space |
| `sentu_0` | its first letter in upper case |
| anything else | text as written, `_` for a space |

`braces.py` has the other language, in which columns stand by their names: `{sentence} It was {mask}.`
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from noback.errors import InputError
from noback.options import suggestion
from noback.tasks.prompt import Blank

SPECIALS = ("cls", "mask", "sep+")
SENTENCE = re.compile(r"(\+?)sent(-|l|u|)_([0-9]{1,6})")
# A bare lower-case word, or any near miss of a directive, is no text; text that looks like one starts with `_`.
_LIKE_A_DIRECTIVE = re.compile(r"\s*([a-z]{2,}[-+]?(_\w*)?|(?i:\+?(sent.*|cls|mask|sep\+?)))\s*")
_DIRECTIVES = (*SPECIALS, "sent_0", "+sent_0", "sent-_0", "sentl_0", "+sentl_0", "sentu_0", "sent_1", "+sentl_1")


@dataclass(frozen=True, slots=True)
class Special:
    """A special token: `cls`, `mask` or `sep+`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Literal:
    """Text of the prompt itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """The example's sentence `index`, changed in its first or last character as asked."""

    index: int
    after_space: bool = False
    change: str = ""  # "-" without its last character, "l" first letter lower, "u" first letter upper
    blank: Blank | None = None  # how a template in braces changes it

    def render(self, text: str) -> str:
        """The sentence as the prompt shows it."""
        if self.blank is not None:
            text = self.blank.render(text, "")
        if self.change == "-":
            text = text[:-1]
        elif self.change == "l":
            text = text[:1].lower() + text[1:]
        elif self.change == "u":
            text = text[:1].upper() + text[1:]
        return " " + text if self.after_space else text


Piece = Special | Literal | Sentence


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: its pieces in order."""

    text: str
    pieces: tuple[Piece, ...]
    columns: tuple[str, ...] = ()  # those that a template in braces names, in the order of the sentences

    @property
    def sentences(self) -> int:
        """How many sentences an example must have."""
        return 1 + max(piece.index for piece in self.pieces if isinstance(piece, Sentence))

    def render(self, sentences: tuple[str, ...], mask: str = "<mask>") -> str:
        """The prompt as text, for people to read."""
        parts = []
        for piece in self.pieces:
            if isinstance(piece, Sentence):
                parts.append(piece.render(sentences[piece.index]))
            elif isinstance(piece, Literal):
                parts.append(piece.text)
            elif piece.kind == "mask":
                parts.append(mask)
        return "".join(parts)

    def shown(self, columns: tuple[str, ...]) -> str:
        """The prompt with its columns in braces."""
        plain = tuple(Sentence(p.index, p.after_space) if isinstance(p, Sentence) else p for p in self.pieces)
        return Template(self.text, plain).render(tuple("{" + column + "}" for column in columns))


def parse_template(text: str) -> Template:
    """Parse a template; a piece that cannot be understood is named with its place."""
    pieces: list[Piece] = []
    position = 0
    for part in text.split("*"):
        if part:
            pieces.append(_piece(part, text, position))
        position += len(part) + 1
    masks = sum(piece == Special("mask") for piece in pieces)
    if masks != 1:
        raise InputError(f"template {text!r} has {masks} masks; expected exactly one *mask*")
    if not any(isinstance(piece, Sentence) for piece in pieces):
        raise InputError(f"template {text!r} shows no sentence; expected a piece such as *sent_0*")
    return Template(text, tuple(pieces))


def is_starred(text: str) -> bool:
    """Whether a text has a sentence, or the mask, between stars."""
    return any(part == "mask" or SENTENCE.fullmatch(part) for part in text.split("*"))


def plain_template(sentences: int, separators: int) -> Template:
    """The sentences alone, as a classifier sees them, with so many separators between two of them."""
    pieces: list[Piece] = [Special("cls")]
    for index in range(sentences):
        pieces += [Special("sep+")] * separators if index else []
        pieces.append(Sentence(index))
    return Template("", (*pieces, Special("sep+")))


def _piece(part: str, template: str, position: int) -> Piece:
    if part in SPECIALS:
        return Special(part)
    sentence = SENTENCE.fullmatch(part)
    if sentence and not (sentence[1] and sentence[2] in ("-", "u")):
        return Sentence(int(sentence[3]), bool(sentence[1]), sentence[2])
    if _LIKE_A_DIRECTIVE.fullmatch(part) or sentence:
        raise InputError(
            f"template {template!r} has an unknown directive *{part}* at character {position + 1}"
            f"{suggestion(part, _DIRECTIVES)} (to write it as text, begin it with _)"
        )
    return Literal(part.replace("_", " "))

"""The prompt language of causal tasks: text with the columns of a row in braces.

| blank | meaning |
|---|---|
| `{premise}` | the column's text |
| `{premise:-}` | without its last character |
| `{premise:.}` | without a full stop at its end |
| `{premise:l}`, `{premise:u}` | its first letter in lower case (not the word I), in upper case |
| `{query:@placeholder}` | with the choice in place of `@placeholder` (in a continuation) |
| `{choice}` | the choice itself (in a continuation) |
| `{{`, `}}` | a brace |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from noback.errors import InputError

CHOICE = "choice"
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}:]+)(?::([^{}]*))?\}|[{}]")
_CHANGES = ("", "-", ".", "l", "u")
_I = re.compile(r"I\b")  # the word keeps its capital inside a sentence


@dataclass(frozen=True, slots=True)
class Blank:
    """A column's place in a prompt, changed in its first or last character or filled with the choice as asked."""

    column: str
    change: str = ""

    def render(self, text: str, choice: str) -> str:
        """The column's text as the prompt shows it."""
        if self.change.startswith("@"):
            return text.replace(self.change, choice)
        if self.change == "-":
            return text[:-1]
        if self.change == ".":
            return text.rstrip().removesuffix(".")
        if self.change == "u":
            return text[:1].upper() + text[1:]
        if self.change == "l" and not _I.match(text):
            return text[:1].lower() + text[1:]
        return text

    @property
    def text(self) -> str:
        """The blank as a task's file writes it."""
        return "{" + self.column + (f":{self.change}" if self.change else "") + "}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A parsed prompt: its texts and blanks in order."""

    pieces: tuple[str | Blank, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it shows, in their order, each once; the choice is none of them."""
        found = dict.fromkeys(piece.column for piece in self.pieces if isinstance(piece, Blank))
        return tuple(column for column in found if column != CHOICE)

    def render(self, values: Mapping[str, str], choice: str = "") -> str:
        """The prompt of a row."""
        given = {**values, CHOICE: choice}
        return "".join(
            piece.render(given[piece.column], choice) if isinstance(piece, Blank) else piece for piece in self.pieces
        )

    def renamed(self, names: Mapping[str, str]) -> str:
        """The prompt's text with its columns under other names."""
        return "".join(
            replace(piece, column=names.get(piece.column, piece.column)).text
            if isinstance(piece, Blank)
            else piece.replace("{", "{{").replace("}", "}}")
            for piece in self.pieces
        )

    @property
    def glue(self) -> str:
        """What stands between the prompt and an answer: a space, or nothing where the prompt ends a line."""
        last = self.pieces[-1]
        return "" if isinstance(last, str) and last.endswith("\n") else " "


def parse_prompt(text: str, what: str) -> Prompt:
    """Parse a prompt; `what` names it in the sentence with which a wrong one is refused."""
    pieces: list[str | Blank] = []
    end = 0
    for found in _TOKEN.finditer(text):
        _add(pieces, text[end : found.start()])
        end = found.end()
        if found[0] in ("{{", "}}"):
            _add(pieces, found[0][0])
            continue
        column, change = (found[1] or "").strip(), found[2] or ""
        if not column:
            raise InputError(
                f"{what} has a lone {found[0]!r} at character {found.start() + 1}; expected {{column}}, "
                "or two braces for a brace as text"
            )
        if change not in _CHANGES and not (change.startswith("@") and len(change) > 1):
            raise InputError(
                f"{what} asks for {found[0]!r} at character {found.start() + 1}; after the colon expected one of "
                "- . l u, or @ and a marker that the choice replaces"
            )
        pieces.append(Blank(column, change))
    _add(pieces, text[end:])
    return Prompt(tuple(pieces))


def _add(pieces: list[str | Blank], text: str) -> None:
    """Append text, joined to the text before it."""
    if text and pieces and isinstance(pieces[-1], str):
        pieces[-1] += text
    elif text:
        pieces.append(text)

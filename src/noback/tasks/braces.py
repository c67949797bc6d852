"""Templates with the columns of a row in braces, for masked models: `{sentence} It was {mask}.`

The blanks are those of a causal task's prompt (`prompt.py`). `{mask}`, `[MASK]` and `<mask>` are the mask, whatever the
model calls its own. A label word brings the space before it, so one before the mask is not a token of the prompt;
one before a column belongs to the column's first word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from noback.errors import InputError
from noback.tasks.prompt import Blank, parse_prompt
from noback.tasks.template import SENTENCE, Literal, Piece, Sentence, Special, Template

MASK = "mask"
_TOKEN = re.compile(r"\[MASK\]|<mask>", re.IGNORECASE)
_BLANK = re.compile(r"\{[^{}]+\}")


def is_braced(text: str) -> bool:
    """Whether a template is of this language: braces or a mask's name, and not both a sentence and a mask in stars."""
    parts = text.split("*")
    starred = MASK in parts and any(map(SENTENCE.fullmatch, parts))
    return not starred and bool(_BLANK.search(text) or _TOKEN.search(text))


def masks_in(text: str) -> int:
    """How many masks a template in braces has."""
    return sum(piece is None for piece in _parts(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The template with its columns under other names."""
    return parse_prompt(text, f"template {text!r}").renamed(names)


def parse_braces(text: str) -> Template:
    """Parse a template in braces; it must have one mask and show a column."""
    pieces: list[Piece] = [Special("cls")]
    columns: list[str] = []
    for part in _parts(text):
        if isinstance(part, str):
            pieces.append(Literal(part))
        elif part is None:
            while _takes_space(pieces):
                pass
            pieces.append(Special(MASK))
        else:
            columns += [part.column] if part.column not in columns else []
            space = _takes_space(pieces)
            pieces.append(Sentence(columns.index(part.column), space, blank=part if part.change else None))
    masks = pieces.count(Special(MASK))
    if masks != 1:
        found = "no mask" if not masks else f"{masks} masks"
        raise InputError(f"template {text!r} has {found}; expected one {{mask}}, where the label word goes")
    if not columns:
        raise InputError(f"template {text!r} shows no column; expected one of the data's in braces, such as {{text}}")
    return Template(text, (*pieces, Special("sep+")), tuple(columns))


def _parts(text: str) -> Iterator[str | Blank | None]:
    """The texts, the columns and, as None, the masks of a template in their order."""
    for piece in parse_prompt(text, f"template {text!r}").pieces:
        if isinstance(piece, str):
            literals = _TOKEN.split(piece)
            for number, literal in enumerate(literals):
                yield from [literal] if literal else []
                yield from [None] if number < len(literals) - 1 else []
        elif piece.column.lower() == MASK and not piece.change:
            yield None
        elif piece.change.startswith("@"):
            raise InputError(f"template {text!r} asks for {piece.text!r}; a masked model's template has no choices")
        else:
            yield piece


def _takes_space(pieces: list[Piece]) -> bool:
    """Take a space off the end of what stands there so far; whether there was one."""
    last = pieces[-1]
    if not (isinstance(last, Literal) and last.text.endswith(" ")):
        return False
    pieces[-1:] = [Literal(last.text[:-1])] if len(last.text) > 1 else []
    return True

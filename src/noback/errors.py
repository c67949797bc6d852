"""What can go wrong for a person to act on: one sentence each, no traceback at the command line."""

from __future__ import annotations

import re


class NobackError(Exception):
    """Something went wrong that the message explains; the command line exits with `exit_code`."""

    exit_code = 1


class InputError(NobackError):
    """What the person gave cannot be used: what was found, what was expected, what to do."""

    exit_code = 2


class NoReadout(InputError):
    """A readout has no place in a run; `why` says why, and is all that is said where it was wanted only if possible."""

    def __init__(self, why: str, instead: str = "leave it out (--readout words)") -> None:
        super().__init__(f"{why}: {instead}")
        self.why = why


class NoNumbers(NobackError):
    """What the model answers is no number: nan or infinite; `found` says where."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}: the weights have diverged, or the model does not run in its dtype; take the weights of an "
            "earlier step (--at best), or train anew with a smaller lr"
        )
        self.found = found


class Interrupted(NobackError):
    """The run was asked to stop; everything up to here is safe."""

    exit_code = 130


class Diverged(NobackError):
    """A run's answers or losses ceased to be numbers, so it stopped."""


class InUseError(InputError):
    """Another process holds what is asked for."""


class DamagedError(InputError):
    """A file of a run is damaged or belongs to something else."""


def printable(text: str) -> str:
    """A text as a terminal may show it: what would steer the terminal, or turn the order of letters, by its escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shown(value: object) -> str:
    """A value as an error shows it: as Python writes it, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"a number of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # of very many levels; a list of numbers that are too long to be written
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= _LONG else f"{text[: _LONG - 20]}... ({len(text):,} characters)"


# Controls but tab and line feed; soft and zero-width breaks, bidirectional marks, line separators, lone surrogates and
# tags. The joiners of Persian, Indic scripts and emoji (U+200C, U+200D) are text.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LONG = 200  # characters of a value in an error
_BITS = 256  # of a number in an error; Python writes none of over 4,300 digits

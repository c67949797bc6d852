"""What a person gives, read with care: texts, whole numbers, regular files, TOML and JSON."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from noback.errors import InputError, shown

_LARGEST_TOML = 2**24  # bytes
_NUMBER = re.compile(r"[0-9]{1,40}")


def check_text(name: str, text: str) -> None:
    """Refuse a text that no tokenizer, file or path can hold: lone surrogates, which are bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is {shown(text)}, which is no UTF-8; expected text that can be written") from None


def check_name(name: str, text: str) -> None:
    """Refuse a text that cannot be part of a path: one with a NUL character, or no UTF-8."""
    check_text(name, text)
    if "\0" in text:
        raise InputError(f"{name} is {shown(text)}, which holds a NUL character; expected a text without one")


def whole_number_in(text: str) -> int | None:
    """The whole number that a text writes in the digits 0 to 9, at most 40 of them; None where it is no such text."""
    return int(text) if _NUMBER.fullmatch(text) else None


def read_given(path: Path, what: str, most: int | None = None) -> bytes:
    """The bytes of a regular file, links followed; a folder, a pipe or a device is refused and never waited for.

    `most`: a file of more bytes is refused.
    """
    try:
        with open_given(path, what) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise InputError(f"{what} {shown(str(path))} has {size:,} bytes; expected at most {most:,}")
            return file.read()
    except OSError as error:
        raise InputError(f"{what} {shown(str(path))} cannot be read: {error.strerror}") from None


def open_given(path: Path, what: str) -> BinaryIO:
    """A regular file, open to be read, links followed; a folder, a pipe or a device is refused and never waited for."""
    named = f"{what} {shown(str(path))}"
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(f"{named} does not exist") from None
    except IsADirectoryError:
        raise InputError(f"{named} is a folder; expected a file") from None
    except OSError as error:
        raise InputError(f"{named} cannot be read: {error.strerror}") from None
    except ValueError:  # a path with a NUL character, or lone surrogates that are no bytes of a name
        raise InputError(f"{named} cannot be read: no file can have that name") from None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise InputError(f"{named} is no regular file; expected a file, not a pipe or a device")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The nested tables of a TOML file."""
    raw = read_given(path, what, _LARGEST_TOML)
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except RecursionError:
        raise InputError(f"{what} {shown(str(path))} is nested too deeply; expected a few levels") from None
    except ValueError as error:  # what is no TOML, no UTF-8, or a number of over 4,300 digits
        raise InputError(f"{what} {shown(str(path))} is not TOML: {error}") from None


def json_value(text: str) -> Any:
    """A JSON value; a ValueError says what is wrong, such as a key that stands twice in one object."""
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value; write null where a value is missing")


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)

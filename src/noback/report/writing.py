"""Writing a report: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from noback.errors import InputError


def check_place(path: Path) -> None:
    """Refuse a place where no file can be."""
    if path.is_dir():
        raise InputError(f"--out {str(path)!r} is a folder; expected a file's name, such as {str(path / 'report.html')!r}")
    if not path.parent.is_dir():
        raise InputError(f"folder {str(path.parent)!r} of --out does not exist; make it or choose another place")


def write_whole(path: Path, text: str) -> None:
    """Put the text under its name in one move, so that nobody opens half a report."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose another place with --out") from None

"""Writing a report: whole or not at all."""

from __future__ import annotations

from pathlib import Path

from noback.errors import InputError, NobackError
from noback.files import write_whole


def check_place(path: Path) -> None:
    """Refuse a place where no file can be."""
    if path.is_dir():
        raise InputError(
            f"--out {str(path)!r} is a folder; expected a file's name, such as {str(path / 'report.html')!r}"
        )
    if not path.parent.is_dir():
        raise InputError(f"folder {str(path.parent)!r} of --out does not exist; make it or choose another place")


def write_report(path: Path, text: str) -> None:
    """Put the text under its name in one move, so that nobody opens half a report."""
    sound = text.encode(errors="replace").decode()  # half a surrogate, which JSON can hold, is no text
    try:
        write_whole(path, sound)
    except NobackError as error:
        raise InputError(f"{error}; choose another place with --out") from None

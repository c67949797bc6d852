"""Files that noback writes and reads again: regular ones, never through a link, and whole or not at all.

A run's folder may come from someone else. A link in it would let a run write to, or empty, a file elsewhere; a named
pipe would make it wait for ever.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from noback.errors import DamagedError, NobackError

_LARGEST = 2**28  # bytes


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file; a link, a pipe or a folder in its place is refused. Other errors pass."""
    try:
        # Without O_NONBLOCK, to open a pipe that nobody writes to would wait; regular files do not know it.
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            refuse_link(path)
        if error.errno != errno.ENXIO:  # a pipe without a reader
            raise
        raise _irregular(path) from None
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise _irregular(path)


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file; one larger than any that noback writes is refused. The system's errors pass."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:  # a file with holes takes no room where it lies, and all of it in memory
            raise DamagedError(
                f"{str(path)!r} has {size:,} bytes; noback reads at most {_LARGEST:,} of such a file: "
                "put the one that was written in its place, or remove it"
            )
        return file.read()


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(read_regular(path).decode())
    except OSError as error:
        raise DamagedError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{str(path)!r} is not JSON ({error}); make it anew") from None


def is_regular(path: Path) -> bool:
    """Whether a regular file is there; anything else in its place is refused."""
    refuse_link(path)
    try:
        os.close(open_regular(path))
    except FileNotFoundError:
        return False
    return True


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link."""
    if path.is_symlink():
        raise DamagedError(
            f"{str(path)!r} is a link; what noback reads and writes in a folder must lie there itself: "
            "put the file in its place"
        )


def _irregular(path: Path) -> DamagedError:
    return DamagedError(f"{str(path)!r} is no regular file; noback reads and writes only such: remove it")


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, or take the place of what is, and wait until the disk has it."""
    path.unlink(missing_ok=True)  # a link itself, not what it names
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file, whole or not at all."""
    clear_leftovers(path.parent, path.name)
    unborn = unborn_name(path)
    try:
        write_new(unborn, text.encode() if isinstance(text, str) else text)
        os.replace(unborn, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unborn.unlink(missing_ok=True)
        raise NobackError(f"cannot write {str(path)!r}: {error.strerror}") from None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into that comes to be under its name when all is written, or not at all."""
    clear_leftovers(path.parent, path.name)
    unborn = unborn_name(path)
    try:
        number = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unborn, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unborn.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise NobackError(f"cannot write {str(path)!r}: {error.strerror}") from None
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into that comes to be under its name when all is written, or not at all."""
    clear_leftovers(path.parent, path.name)
    unborn = unborn_name(path)
    try:
        unborn.mkdir(parents=True)
        yield unborn
        os.replace(unborn, path)
    except BaseException:
        shutil.rmtree(unborn, ignore_errors=True)
        raise


def unborn_name(path: Path) -> Path:
    """What a file or folder is called until it is whole: hidden, with the number of the process that writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what processes that died left half-written in a folder; `name`: of this file or folder alone."""
    left = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.(\d{{1,10}})")
    with contextlib.suppress(OSError):
        for each in list(folder.iterdir()):
            found = left.fullmatch(each.name)
            if found is None or _is_alive(int(found[1])):
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != os.getpid()  # our own number on a file that we have not begun: an earlier process had it

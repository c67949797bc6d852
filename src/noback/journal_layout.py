"""How a journal's bytes are laid out: its beginning, its records of one size, and what follows an evaluation."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from noback.errors import DamagedError, NobackError
from noback.files import open_regular
from noback.header import LONGEST, ordered, parsed_header, readout_shape

FORMAT = 4  # 1: no figures; 2: no chain; 3: no readout
_MAGIC = re.compile(rb"noback journal (\d{1,9})\n")
_PLAIN, _CHAINED, _WITH_READOUT = (b"noback journal %d\n" % number for number in (1, 3, 4))
_KNOWN = {_PLAIN: (1, 2), _CHAINED: (3,), _WITH_READOUT: (4,)}  # the header names the format too
_CHECK = 8  # bytes of the check of a chained record


class Layout(NamedTuple):
    """How a journal's records are written."""

    directions: int
    numbers: int  # slopes and figures
    body: struct.Struct  # a record without its check
    crc: int | None  # of the header, which formats 1 and 2 begin a record's CRC-32 with; None: records are chained
    values: int  # bytes that follow the record of an evaluation, before a check of their own: the readout's values

    @property
    def size(self) -> int:
        """The bytes of a record, without what follows it."""
        return self.body.size + (_CHECK if self.crc is None else 4)

    @property
    def following(self) -> int:
        """The bytes that follow the record of an evaluation."""
        return self.values + _CHECK if self.values else 0

    def kind(self, packed: bytes) -> int:
        """The kind of a record."""
        return int(struct.unpack_from("<I", packed)[0])

    def check(self, packed: bytes, digest: bytes) -> bytes:
        """What stands at a record's end; `digest`: the running digest after it."""
        return digest[:_CHECK] if self.crc is None else struct.pack("<I", zlib.crc32(packed, self.crc))


class Beginning(NamedTuple):
    """What stands before the records."""

    header: dict[str, Any]
    layout: Layout
    digest: bytes  # the running digest before the first record
    size: int  # bytes


def digest_of(data: bytes) -> bytes:
    """A running digest."""
    return hashlib.blake2b(data, digest_size=16).digest()


def begun(file: BinaryIO, path: Path) -> Beginning:
    """Read a journal up to its first record."""
    where = f"journal {str(path)!r}"
    magic = file.read(len(_CHAINED))
    found = _MAGIC.match(magic)
    if found is None:
        raise DamagedError(f"{str(path)!r} is no noback journal, or its header is damaged")
    if magic not in _KNOWN:
        raise DamagedError(_newer(where, int(found[1])))
    length = struct.unpack("<I", file.read(4).ljust(4, b"\0"))[0]
    text = file.read(min(length, LONGEST))
    body = magic + struct.pack("<I", length) + text
    chained, digest = magic != _PLAIN, digest_of(body)
    expected = digest[:_CHECK] if chained else struct.pack("<I", zlib.crc32(body))
    if len(text) != length or file.read(len(expected)) != expected:
        raise DamagedError(f"the header of {where} is damaged: its checksum does not fit")
    header = parsed_header(text, where)
    if header.get("format", 1) not in _KNOWN[magic]:
        raise DamagedError(_newer(where, header.get("format")))
    return Beginning(header, _layout(header, body, chained=chained), digest, len(body) + len(expected))


def beginning(header: Mapping[str, Any]) -> tuple[bytes, Layout]:
    """All bytes of a new journal up to the check of its header, and the layout of its records."""
    magic, number = (_WITH_READOUT, 4) if "readout" in header else (_CHAINED, 3)
    text = json.dumps(ordered({**header, "format": number})).encode()
    body = magic + struct.pack("<I", len(text)) + text
    return body, _layout(header, body, chained=True)


def checked(body: bytes) -> bytes:
    """The beginning of a new journal with its check."""
    return body + digest_of(body)[:_CHECK]


@contextmanager
def saying(path: Path) -> Iterator[None]:
    """Turns a disk's refusal into a sentence."""
    try:
        yield
    except OSError as error:
        raise NobackError(
            f"cannot write {str(path)!r}: {error.strerror}; what was written before is safe: "
            f"make room and go on with `noback resume {path.parent}`"
        ) from None


def opened(path: Path) -> BinaryIO:
    """A journal's file, to be read."""
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise DamagedError(f"journal {str(path)!r} cannot be read: {error.strerror}") from None


def _newer(where: str, number: object) -> str:
    return f"{where} has format {number!r}, which a newer noback wrote; this one reads 1 to {FORMAT}"


def _layout(header: Mapping[str, Any], body: bytes, *, chained: bool) -> Layout:
    directions = int(header["directions"])
    numbers = directions + len(header.get("figures", ()))
    labels, columns = readout_shape(header) or (0, 0)
    crc = None if chained else zlib.crc32(body)
    return Layout(directions, numbers, struct.Struct(f"<IIf{numbers}f"), crc, 4 * labels * columns)

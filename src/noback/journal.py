"""The journal: a header and one small checksummed record a step; with the base weights, it is the whole fine-tune.

Layout (little-endian): `noback journal 3` and a line feed, header length (u32), header (JSON), check (8 bytes); then
records of one size: kind (u32), step (u32), value (f32), slopes and figures (f32 each), check (8 bytes).
The header says how many slopes (`directions`) and which figures (`figures`) a record has.
A *step* record holds the loss, the slopes that its move was made from, and what else its estimator keeps; an
*evaluation* record the validation score as value and the validation loss in place of the first slope, and its kind says
whether its weights are the best from there on, so that the journal alone says which step was best; an *eps* record the
eps from that step on, where ties made it grow; a *seal* says that the run has ended, and nothing comes after it.

Records are chained. The running digest begins as BLAKE2b of all bytes up to the header's end, and each record makes it
BLAKE2b of the digest before and the record's numbers; a check is its first 8 bytes. So a record that is missing,
doubled, moved or from another journal does not fit, and a digest stands for everything before it.
Formats 1 and 2 (`noback journal 1`) have a CRC-32 of the record and the header as their check, and no seal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from noback.errors import DamagedError, NobackError
from noback.files import open_regular, write_new
from noback.header import LONGEST, ordered, parsed_header, patience_of, steps_of
from noback.values import to_float32

FORMAT = 3  # 1: no figures; 2: no chain
_MAGIC = re.compile(rb"noback journal (\d{1,9})\n")
_CHAINED, _PLAIN = b"noback journal 3\n", b"noback journal 1\n"
_STEP, _EVALUATION, _EPS, _SEAL, _CHOSEN = 1, 2, 3, 4, 5
_MOVED = ", or the records before it are not those it was written after"
_CHUNK = 1024  # records that are read at once
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was taken: its loss, the slopes along its directions, and its estimator's figures."""

    step: int
    loss: float
    slopes: tuple[float, ...]
    figures: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation on the validation set after `step` steps."""

    step: int
    score: float
    loss: float
    chosen: bool = False  # from here on these weights are the best; in journals before this was kept, always False


@dataclass(frozen=True, slots=True)
class EpsChange:
    """From `step` on, losses are taken at `eps` to either side."""

    step: int
    eps: float


@dataclass(frozen=True, slots=True)
class Seal:
    """The run has ended after `step` steps: nothing comes after."""

    step: int


Record = StepRecord | Evaluation | EpsChange | Seal


@dataclass(slots=True)
class Contents:
    """What a journal holds, and how many of its bytes are sound."""

    header: dict[str, Any]
    digests: list[bytes]  # the running digest after 0, 1, ... steps: [0] names the run, the others all up to a step
    sound_bytes: int
    record_bytes: int
    torn_bytes: int = 0
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    eps_changes: list[EpsChange] = field(default_factory=list)
    sealed: bool = False

    def add(self, record: Record, digest: bytes) -> None:
        """Take in the next record and the running digest after it."""
        if isinstance(record, StepRecord):
            self.steps.append(record)
            self.digests.append(digest)
        elif isinstance(record, Evaluation):
            self.evaluations.append(record)
        elif isinstance(record, EpsChange):
            self.eps_changes.append(record)
        else:
            self.sealed = True

    @property
    def chooses(self) -> bool:
        """Whether evaluations say if they are chosen: the first always is."""
        return not self.evaluations or self.evaluations[0].chosen

    def best(self) -> Evaluation | None:
        """The evaluation that was chosen last; in older journals the one with the highest score, then lowest loss."""
        if self.chooses:
            return next((one for one in reversed(self.evaluations) if one.chosen), None)
        finite = [one for one in self.evaluations if math.isfinite(one.score) and math.isfinite(one.loss)]
        return max(finite, key=lambda one: (one.score, -one.loss, -one.step), default=None)

    @property
    def stopped_early(self) -> bool:
        """Whether as many evaluations in a row as the run has patience brought no better weights, before its end."""
        patience, best = patience_of(self.header), self.best()
        if patience is None or best is None or len(self.steps) == steps_of(self.header):
            return False
        return sum(one.step > best.step for one in self.evaluations) >= patience

    @property
    def is_chained(self) -> bool:
        """Whether a missing, doubled or moved record would show."""
        return int(self.header.get("format", 1)) >= FORMAT

    def warning(self) -> str | None:
        """What a reader must know of a run's journal that is not whole, or cannot be known to be; None: it is whole."""
        steps = steps_of(self.header)
        if steps is None or self.sealed:
            return None
        taken = f"the journal holds {len(self.steps)} of {steps} steps"
        if not self.is_chained:
            return (
                f"{taken}; it has format {self.header.get('format', 1)}, whose records are guarded one by one: "
                "an evaluation that was taken out, or an end that was cut off, would not show"
            )
        return f"{taken} and no seal: the run has not ended, or the file's end was cut off"


class Journal:
    """A journal to write to; a record is on the disk when `append` returns."""

    def __init__(self, path: Path, layout: _Layout, digest: bytes) -> None:
        self._path, self._layout, self._digest = path, layout, digest

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal; the header says how many slopes (`directions`) and which `figures` a record holds."""
        body = _beginning(header)
        temporary = path.with_name(path.name + ".new")
        with _saying(path):
            write_new(temporary, body + _digest(body)[:8])
            os.replace(temporary, path)
        return cls(path, _layout(header, body, chained=True), _digest(body))

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, Contents]:
        """A journal to go on with; a torn last record is dropped."""
        with _opened(path) as file:
            contents, layout, digest = _read(file, path)
        with _saying(path), os.fdopen(open_regular(path, os.O_WRONLY), "wb") as file:
            os.ftruncate(file.fileno(), contents.sound_bytes)
        return cls(path, layout, digest), contents

    def append(self, record: Record) -> bytes:
        """Write a record, wait until the disk has it, and give the running digest after it."""
        kind, *values = _fields(record)
        layout = self._layout
        padding = (0.0,) * (layout.numbers + 1 - len(values))
        packed = layout.body.pack(kind, record.step, *values, *padding)
        digest = _digest(self._digest + packed)
        data = packed + layout.check(packed, digest)
        with _saying(self._path), os.fdopen(open_regular(self._path, os.O_WRONLY | os.O_APPEND), "ab", 0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(data) != len(data):  # a full disk can take a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _sync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), before)
                raise
        self._digest = digest
        return digest


class _Layout(NamedTuple):
    """How a journal's records are written."""

    directions: int
    numbers: int  # slopes and figures
    body: struct.Struct  # a record without its check
    crc: int | None  # of the header, which formats 1 and 2 begin a record's CRC-32 with; None: records are chained

    @property
    def size(self) -> int:
        return self.body.size + (8 if self.crc is None else 4)

    def check(self, packed: bytes, digest: bytes) -> bytes:
        """What stands at a record's end; `digest`: the running digest after it."""
        return digest[:8] if self.crc is None else struct.pack("<I", zlib.crc32(packed, self.crc))


def read_journal(path: Path) -> Contents:
    """Everything a journal holds; a torn last record is left out, any other damage is named."""
    with _opened(path) as file:
        return _read(file, path)[0]


def rewrite(path: Path, header: Mapping[str, Any]) -> None:
    """Write a chained journal anew under another header, with its own records and without its seal.

    The new file is read again and compared before it takes the old one's place, whole or not at all.
    """
    with _opened(path) as file:
        before, layout, _ = _read(file, path)
        kept = [*before.steps, *before.evaluations, *before.eps_changes]  # all but the seal
        file.seek(before.sound_bytes - (len(kept) + before.sealed) * layout.size)
        bodies = [one[: layout.body.size] for one in _records(file, layout.size, len(kept))]
    body = _beginning(header)
    digest, parts = _digest(body), [body, _digest(body)[:8]]
    for packed in bodies:
        digest = _digest(digest + packed)
        parts += [packed, digest[:8]]
    temporary = path.with_name(path.name + ".new")
    with _saying(path):
        write_new(temporary, b"".join(parts))
        after = read_journal(temporary)
        if [*after.steps, *after.evaluations, *after.eps_changes] != kept:
            raise DamagedError(f"{str(temporary)!r} does not hold what journal {str(path)!r} does; try again")
        os.replace(temporary, path)


def read_header(path: Path) -> dict[str, Any]:
    """What a journal says about itself."""
    with _opened(path) as file:
        return _begin(file, path)[0]


def rounded(score: float, loss: float, step: int, *, chosen: bool) -> Evaluation:
    """An evaluation in the precision that the journal keeps."""
    return Evaluation(step, to_float32(score), to_float32(loss), chosen)


def _read(file: BinaryIO, path: Path) -> tuple[Contents, _Layout, bytes]:
    """What a journal holds, how it is laid out, and its running digest."""
    header, layout, digest, begin = _begin(file, path)
    whole, torn = divmod(os.fstat(file.fileno()).st_size - begin, layout.size)
    contents = Contents(header, [digest], begin, layout.size)
    steps = steps_of(header)
    for index, packed in enumerate(_records(file, layout.size, whole)):
        body = packed[: layout.body.size]
        after = _digest(digest + body)
        if packed[layout.body.size :] != layout.check(body, after):
            if index == whole - 1 and not contents.sealed:  # as a death while it was written leaves it
                torn += layout.size
                break
            why = _MOVED if layout.crc is None else ""
            raise DamagedError(f"record {index} of journal {str(path)!r} is damaged: its checksum does not fit{why}")
        try:
            record = _record(layout, body)
            _check_place(record, contents, steps)
        except _Wrong as error:
            raise DamagedError(f"record {index} of journal {str(path)!r} {error}") from None
        digest = after
        contents.add(record, digest)
        contents.sound_bytes += layout.size
    if torn and contents.sealed:
        raise DamagedError(f"journal {str(path)!r} has {torn} bytes after its seal; expected none")
    contents.torn_bytes = torn
    return contents, layout, digest


def _records(file: BinaryIO, size: int, count: int) -> Iterator[bytes]:
    """The whole records of a journal, a few at a time: a long file that is no journal is left at once."""
    for begin in range(0, count, _CHUNK):
        chunk = file.read(size * min(_CHUNK, count - begin))
        yield from (chunk[place : place + size] for place in range(0, len(chunk), size))


class _Wrong(Exception):
    """What is wrong with a record whose checksum fits."""


def _record(layout: _Layout, body: bytes) -> Record:
    """A record from its bytes; one of a newer noback, or with a number that is none, is refused."""
    kind, step, value, *rest = layout.body.unpack(body)
    finite = math.isfinite(value) and all(map(math.isfinite, rest))
    if not finite and (kind != _EVALUATION or layout.crc is None):  # noback 0.1.0 wrote evaluations that are none
        raise _Wrong(f"holds a number that is not finite ({value}, {rest[0]}); expected finite ones")
    if kind == _STEP:
        return StepRecord(step, value, tuple(rest[: layout.directions]), tuple(rest[layout.directions :]))
    if kind == _EVALUATION or (kind == _CHOSEN and layout.crc is None):
        return Evaluation(step, value, rest[0], kind == _CHOSEN)
    if kind not in (_EPS, _SEAL):
        raise _Wrong(f"is of kind {kind}, which a newer noback wrote")
    return EpsChange(step, value) if kind == _EPS else Seal(step)


def _check_place(record: Record, contents: Contents, steps: int | None) -> None:
    """Refuse a record that cannot stand where it does."""
    taken = len(contents.steps)
    if contents.sealed:
        raise _Wrong("comes after the seal of a run that has ended")
    if record.step != taken:
        raise _Wrong(f"is {_NAMES[type(record)]} {record.step}; expected step {taken}")
    if isinstance(record, StepRecord):
        wrong = steps is not None and taken >= steps
    elif isinstance(record, Seal):
        wrong = steps != taken and not contents.stopped_early
    elif isinstance(record, Evaluation):
        again = bool(contents.evaluations) and contents.evaluations[-1].step == taken
        wrong = again or (record.chosen and not contents.chooses)
    else:
        wrong = record.eps <= 0 or (bool(contents.eps_changes) and contents.eps_changes[-1].step == taken)
    if wrong:
        raise _Wrong(f"is {_NAMES[type(record)]} {record.step}, which cannot stand there in this run")


_NAMES = {StepRecord: "step", Evaluation: "an evaluation at step", EpsChange: "an eps at step", Seal: "a seal at step"}


def _fields(record: Record) -> tuple[float, ...]:
    """A record's kind and values."""
    if isinstance(record, StepRecord):
        return (_STEP, record.loss, *record.slopes, *record.figures)
    if isinstance(record, Evaluation):
        return (_CHOSEN if record.chosen else _EVALUATION, record.score, record.loss)
    return (_EPS, record.eps) if isinstance(record, EpsChange) else (_SEAL, 0.0)


def _begin(file: BinaryIO, path: Path) -> tuple[dict[str, Any], _Layout, bytes, int]:
    """The header, the layout of the records, the running digest before them, and where they begin."""
    where = f"journal {str(path)!r}"
    magic = file.read(len(_CHAINED))
    found = _MAGIC.match(magic)
    if found is None:
        raise DamagedError(f"{str(path)!r} is no noback journal, or its header is damaged")
    if magic not in (_CHAINED, _PLAIN):
        raise DamagedError(_newer(where, int(found[1])))
    length = struct.unpack("<I", file.read(4).ljust(4, b"\0"))[0]
    text = file.read(min(length, LONGEST))
    body = magic + struct.pack("<I", length) + text
    chained, digest = magic == _CHAINED, _digest(body)
    expected = digest[:8] if chained else struct.pack("<I", zlib.crc32(body))
    if len(text) != length or file.read(len(expected)) != expected:
        raise DamagedError(f"the header of {where} is damaged: its checksum does not fit")
    header = parsed_header(text, where)
    known = (FORMAT,) if chained else (1, 2)
    if header.get("format", 1) not in known:
        raise DamagedError(_newer(where, header.get("format")))
    return header, _layout(header, body, chained=chained), digest, len(body) + len(expected)


def _newer(where: str, number: object) -> str:
    return f"{where} has format {number!r}, which a newer noback wrote; this one reads 1 to {FORMAT}"


def _beginning(header: Mapping[str, Any]) -> bytes:
    """All bytes of a journal up to the check of its header."""
    text = json.dumps(ordered({**header, "format": FORMAT})).encode()
    return _CHAINED + struct.pack("<I", len(text)) + text


def _layout(header: Mapping[str, Any], body: bytes, *, chained: bool) -> _Layout:
    directions = int(header["directions"])
    numbers = directions + len(header.get("figures", ()))
    return _Layout(directions, numbers, struct.Struct(f"<IIf{numbers}f"), None if chained else zlib.crc32(body))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _opened(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise DamagedError(f"journal {str(path)!r} cannot be read: {error.strerror}") from None


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    """Turns a disk's refusal into a sentence."""
    try:
        yield
    except OSError as error:
        raise NobackError(
            f"cannot write {str(path)!r}: {error.strerror}; what was written before is safe: "
            f"make room and go on with `noback resume {path.parent}`"
        ) from None

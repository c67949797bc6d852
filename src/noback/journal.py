"""The journal: a header and one small checksummed record a step; with the base weights, it is the whole fine-tune.

Layout (little-endian): magic, header length (u32), header (JSON), CRC-32 of both; then records of one size:
kind (u32), step (u32), value (f32), slopes and figures (f32 each), CRC-32 of the record and of the header's CRC (u32).
The header says how many slopes (`directions`) and which figures (`figures`, none in format 1) a record has.
A *step* record holds the loss, the slopes that its move was made from, and what else its estimator keeps; an
*evaluation* record the validation score as value and the validation loss in place of the first slope, so that the
journal alone says which step was best; an *eps* record the eps from that step on, where ties made it grow.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noback.errors import DamagedError, NobackError
from noback.values import to_float32

_MAGIC = b"noback journal 1\n"
_STEP, _EVALUATION, _EPS = 1, 2, 3
FORMAT = 2  # 1: no figures
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


@dataclass(frozen=True, slots=True)
class EpsChange:
    """From `step` on, losses are taken at `eps` to either side."""

    step: int
    eps: float


Record = StepRecord | Evaluation | EpsChange


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal holds, and how many of its bytes are sound."""

    header: dict[str, Any]
    header_crc: int
    steps: list[StepRecord]
    evaluations: list[Evaluation]
    sound_bytes: int
    record_bytes: int
    torn_bytes: int
    eps_changes: list[EpsChange]

    def best(self) -> Evaluation | None:
        """The evaluation with the highest score, the lower loss among equals; None where none gave numbers."""
        sound = [one for one in self.evaluations if math.isfinite(one.score) and math.isfinite(one.loss)]
        return max(sound, key=lambda one: (one.score, -one.loss, -one.step), default=None)


class Journal:
    """A journal to write to; a record is on the disk when `append` returns."""

    def __init__(self, path: Path, header_crc: int, numbers: int) -> None:
        self._path, self._crc, self._numbers = path, header_crc, numbers

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal; the header says how many slopes (`directions`) and which `figures` a record holds."""
        text = json.dumps(header, sort_keys=True).encode()
        body = _MAGIC + struct.pack("<I", len(text)) + text
        crc = zlib.crc32(body)
        temporary = path.with_name(path.name + ".new")
        with _Saying(path), open(temporary, "wb") as file:
            file.write(body + struct.pack("<I", crc))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        return cls(path, crc, _numbers(header))

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, Contents]:
        """A journal to go on with; a torn last record is dropped."""
        contents = read_journal(path)
        with _Saying(path):
            os.truncate(path, contents.sound_bytes)
        return cls(path, contents.header_crc, _numbers(contents.header)), contents

    def append(self, record: Record) -> None:
        """Write a record and wait until the disk has it."""
        kind, *values = _fields(record)
        padding = (0.0,) * (self._numbers + 1 - len(values))
        packed = struct.pack(_format(self._numbers), kind, record.step, *values, *padding)
        data = packed + struct.pack("<I", zlib.crc32(packed, self._crc))
        with _Saying(self._path), open(self._path, "ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(data) != len(data):  # a full disk can take a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _sync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), before)
                raise


def read_journal(path: Path) -> Contents:
    """Everything a journal holds; a torn last record is left out, any other damage is named."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"journal {str(path)!r} cannot be read: {error.strerror}") from None
    header, crc, begin = _header(data, path)
    numbers, directions = _numbers(header), int(header["directions"])
    size = struct.calcsize(_format(numbers)) + 4
    whole, torn = divmod(len(data) - begin, size)
    steps: list[StepRecord] = []
    evaluations: list[Evaluation] = []
    eps_changes: list[EpsChange] = []
    for index in range(whole):
        packed = data[begin + index * size : begin + (index + 1) * size]
        if zlib.crc32(packed[:-4], crc) != struct.unpack("<I", packed[-4:])[0]:
            if index == whole - 1:
                whole, torn = whole - 1, torn + size
                break
            raise DamagedError(f"record {index} of journal {str(path)!r} is damaged: its checksum does not fit")
        kind, step, value, *rest = struct.unpack(_format(numbers), packed[:-4])
        if kind == _STEP:
            if step != len(steps):
                raise DamagedError(
                    f"record {index} of journal {str(path)!r} is step {step}; expected step {len(steps)}"
                )
            steps.append(StepRecord(step, value, tuple(rest[:directions]), tuple(rest[directions:])))
        elif kind == _EVALUATION:
            evaluations.append(Evaluation(step, value, rest[0]))
        elif kind == _EPS:
            eps_changes.append(EpsChange(step, value))
        else:
            raise DamagedError(f"record {index} of journal {str(path)!r} is of kind {kind}, which a newer noback wrote")
    return Contents(header, crc, steps, evaluations, begin + whole * size, size, torn, eps_changes)


def rounded(score: float, loss: float, step: int) -> Evaluation:
    """An evaluation in the precision that the journal keeps."""
    return Evaluation(step, to_float32(score), to_float32(loss))


def _fields(record: Record) -> tuple[float, ...]:
    """A record's kind and values."""
    if isinstance(record, StepRecord):
        return (_STEP, record.loss, *record.slopes, *record.figures)
    if isinstance(record, Evaluation):
        return (_EVALUATION, record.score, record.loss)
    return (_EPS, record.eps)


def _format(numbers: int) -> str:
    return f"<IIf{numbers}f"


def _numbers(header: Mapping[str, Any]) -> int:
    """How many slopes and figures a record holds."""
    return int(header["directions"]) + len(header.get("figures", ()))


def _header(data: bytes, path: Path) -> tuple[dict[str, Any], int, int]:
    """The header, its checksum, and where the records begin."""
    start = len(_MAGIC) + 4
    if not data.startswith(_MAGIC) or len(data) < start:
        raise DamagedError(f"{str(path)!r} is no noback journal, or its header is damaged")
    (length,) = struct.unpack("<I", data[len(_MAGIC) : start])
    body, stored = data[: start + length], data[start + length : start + length + 4]
    crc = zlib.crc32(body)
    if len(stored) < 4 or struct.unpack("<I", stored)[0] != crc:
        raise DamagedError(f"the header of journal {str(path)!r} is damaged: its checksum does not fit")
    header: dict[str, Any] = json.loads(body[start:])
    if header.get("format", 1) > FORMAT:
        raise DamagedError(f"journal {str(path)!r} has format {header['format']}, which a newer noback wrote")
    return header, crc, start + length + 4


class _Saying:
    """Turns a disk's refusal into a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise NobackError(
                f"cannot write {str(self._path)!r}: {error.strerror}; what was written before is safe: "
                f"make room and go on with `noback resume {self._path.parent}`"
            ) from None

"""The journal: a header and one small checksummed record a step; with the base weights, it is the whole fine-tune.

Layout (little-endian): `noback journal 3` and a line feed, header length (u32), header (JSON), check (8 bytes); then
records of one size: kind (u32), step (u32), value (f32), slopes and figures (f32 each), check (8 bytes).
The header says how many slopes (`directions`) and which figures (`figures`) a record has. A run with a readout has
`noback journal 4`: its header says the readout's shape (`readout`), and its values (f32 each, check) follow each
evaluation.
A *step* record holds the loss, the slopes that its move was made from, and what else its estimator keeps; an
*evaluation* record the validation score as value and the validation loss in place of the first slope, and its kind says
whether its weights are the best from there on, so that the journal alone says which step was best; an *eps* record the
eps from that step on, where ties made it grow; a *seal* says that the run has ended, and nothing comes after it.

Records are chained. The running digest begins as BLAKE2b of all bytes up to the header's end, and each record makes it
BLAKE2b of the digest before and the record's numbers; a check is its first 8 bytes. So a record that is missing,
doubled, moved or from another journal does not fit, and a digest stands for everything before it.
Formats 1 and 2 (`noback journal 1`) have a CRC-32 of the record and the header as their check, and no seal.
`journal_layout.py` has the bytes.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from noback.errors import DamagedError
from noback.files import open_regular, write_new
from noback.header import patience_of, steps_of
from noback.journal_layout import Layout, beginning, begun, checked, digest_of, opened, saying
from noback.values import to_float32

_CHAINED = 3  # the first format whose records are chained
_STEP, _EVALUATION, _EPS, _SEAL, _CHOSEN = 1, 2, 3, 4, 5
_MOVED = ", or the records before it are not those it was written after"
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
    readout: bytes = field(default=b"", repr=False)  # its values, float32 [labels, columns]; empty: the run has none


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

    def readout_at(self, step: int) -> bytes:
        """The readout's values after `step` steps: those of the last evaluation up to there; empty: zero, or none."""
        return next((one.readout for one in reversed(self.evaluations) if one.step <= step), b"")

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
        return int(self.header.get("format", 1)) >= _CHAINED

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

    def __init__(self, path: Path, layout: Layout, digest: bytes) -> None:
        self._path, self._layout, self._digest = path, layout, digest

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """A new journal; the header says how many slopes (`directions`) and which `figures` a record holds."""
        body, layout = beginning(header)
        temporary = path.with_name(path.name + ".new")
        with saying(path):
            write_new(temporary, checked(body))
            os.replace(temporary, path)
        return cls(path, layout, digest_of(body))

    @classmethod
    def reopen(cls, path: Path) -> tuple[Journal, Contents]:
        """A journal to go on with; a torn last record is dropped."""
        with opened(path) as file:
            contents, layout, digest = _read(file, path)
        with saying(path), os.fdopen(open_regular(path, os.O_WRONLY), "wb") as file:
            os.ftruncate(file.fileno(), contents.sound_bytes)
        return cls(path, layout, digest), contents

    def append(self, record: Record) -> bytes:
        """Write a record, wait until the disk has it, and give the running digest after it."""
        data, digest = _written(self._layout, record, self._digest)
        with saying(self._path), os.fdopen(open_regular(self._path, os.O_WRONLY | os.O_APPEND), "ab", 0) as file:
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


def _written(layout: Layout, record: Record, before: bytes) -> tuple[bytes, bytes]:
    """A record's bytes with what follows it, and the running digest after it; `before`: the one before it."""
    kind, *values = _fields(record)
    padding = (0.0,) * (layout.numbers + 1 - len(values))
    packed = layout.body.pack(kind, record.step, *values, *padding)
    digest = digest_of(before + packed)
    data = packed + layout.check(packed, digest)
    if not (layout.values and isinstance(record, Evaluation)):
        return data, digest
    if len(record.readout) != layout.values:
        raise ValueError(f"an evaluation has {len(record.readout)} bytes of a readout; expected {layout.values}")
    digest = digest_of(digest + record.readout)
    return data + record.readout + layout.check(record.readout, digest), digest


def read_journal(path: Path) -> Contents:
    """Everything a journal holds; a torn last record is left out, any other damage is named."""
    with opened(path) as file:
        return _read(file, path)[0]


def rewrite(path: Path, header: Mapping[str, Any]) -> None:
    """Write a chained journal anew under another header, with its own records and without its seal.

    The new file is read again and compared before it takes the old one's place, whole or not at all.
    """
    with opened(path) as file:
        _read(file, path, found := list[Record]())
    kept = [record for record in found if not isinstance(record, Seal)]
    body, layout = beginning(header)
    digest, parts = digest_of(body), [checked(body)]
    for record in kept:
        data, digest = _written(layout, record, digest)
        parts.append(data)
    temporary = path.with_name(path.name + ".new")
    with saying(path):
        write_new(temporary, b"".join(parts))
        with opened(temporary) as file:
            _read(file, temporary, again := list[Record]())
        if again != kept:
            raise DamagedError(f"{str(temporary)!r} does not hold what journal {str(path)!r} does; try again")
        os.replace(temporary, path)


def read_header(path: Path) -> dict[str, Any]:
    """What a journal says about itself."""
    with opened(path) as file:
        return begun(file, path).header


def rounded(score: float, loss: float, step: int, *, chosen: bool, readout: bytes = b"") -> Evaluation:
    """An evaluation in the precision that the journal keeps."""
    return Evaluation(step, to_float32(score), to_float32(loss), chosen, readout)


def _read(file: BinaryIO, path: Path, in_order: list[Record] | None = None) -> tuple[Contents, Layout, bytes]:
    """What a journal holds, how it is laid out, and its running digest; `in_order`: to be given its records."""
    header, layout, digest, begin = begun(file, path)
    contents = Contents(header, [digest], begin, layout.size)
    steps, end, index = steps_of(header), os.fstat(file.fileno()).st_size, 0
    while end - contents.sound_bytes >= layout.size:
        left = end - contents.sound_bytes - layout.size
        body, after = _checked_part(file, layout, layout.body.size, digest)
        if body is None and left < layout.size and not contents.sealed:  # as a death while it was written leaves it
            break
        values: bytes | None = b""
        if body is not None and layout.values and layout.kind(body) in (_EVALUATION, _CHOSEN):
            if left < layout.following and not contents.sealed:
                break
            values, after = _checked_part(file, layout, layout.values, after)
            if values is None and left == layout.following:
                break
        if body is None or values is None:
            why = _MOVED if layout.crc is None else ""
            raise DamagedError(f"record {index} of journal {str(path)!r} is damaged: its checksum does not fit{why}")
        try:
            record = _record(layout, body, values)
            _check_place(record, contents, steps)
        except _Wrong as error:
            raise DamagedError(f"record {index} of journal {str(path)!r} {error}") from None
        digest, index = after, index + 1
        contents.add(record, digest)
        contents.sound_bytes += layout.size + (layout.following if values else 0)
        if in_order is not None:
            in_order.append(record)
    contents.torn_bytes = end - contents.sound_bytes
    if contents.torn_bytes and contents.sealed:
        raise DamagedError(f"journal {str(path)!r} has {contents.torn_bytes} bytes after its seal; expected none")
    return contents, layout, digest


def _checked_part(file: BinaryIO, layout: Layout, size: int, before: bytes) -> tuple[bytes | None, bytes]:
    """So many bytes whose check stands behind them, and the running digest after them; None: it does not fit."""
    part = file.read(size)
    after = digest_of(before + part)
    expected = layout.check(part, after)
    return (part if file.read(len(expected)) == expected else None), after


class _Wrong(Exception):
    """What is wrong with a record whose checksum fits."""


def _record(layout: Layout, body: bytes, values: bytes) -> Record:
    """A record from its bytes; one of a newer noback, or with a number that is none, is refused."""
    kind, step, value, *rest = layout.body.unpack(body)
    if not np.isfinite(np.frombuffer(values, "<f4")).all():
        raise _Wrong("holds values of a readout that are not finite; expected finite ones")
    finite = math.isfinite(value) and all(map(math.isfinite, rest))
    if not finite and (kind != _EVALUATION or layout.crc is None):  # noback 0.1.0 wrote evaluations that are none
        raise _Wrong(f"holds a number that is not finite ({value}, {rest[0]}); expected finite ones")
    if kind == _STEP:
        return StepRecord(step, value, tuple(rest[: layout.directions]), tuple(rest[layout.directions :]))
    if kind == _EVALUATION or (kind == _CHOSEN and layout.crc is None):
        return Evaluation(step, value, rest[0], kind == _CHOSEN, values)
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

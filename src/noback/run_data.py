"""The data of a run that is over: drawn again by the recorded task, checked, and asked which rows were trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from noback.errors import InputError
from noback.files import is_regular, read_regular, write_whole
from noback.run import Run, drawn_data

_BYTES = 8  # of a row's fingerprint


def use_own_data(run: Run, header: Mapping[str, Any], *, changed_ok: bool) -> list[str]:
    """Draw the run's own sets by the task that the journal holds; data that has changed is refused, or said."""
    # The recorded prompt begins with its demonstrations already.
    run.task.use(replace(drawn_data(run.config, run.spec), preamble=""))
    notes = list(run.task.notes)
    if not run.is_recorded or run.task.digest() == header["data"]:
        return notes
    changed = f"the data of run {str(run.folder.path)!r} has changed since it was trained"
    if not changed_ok:
        raise InputError(
            f"{changed}, so its sets may hold other rows, some of them trained on; put the data back, evaluate it as "
            "it is with --data-changed-ok, or name a file with --data"
        )
    return [f"{changed}: its sets were drawn anew", *notes]


def keep_trained_rows(run: Run) -> None:
    """Write the fingerprints of the training rows beside the journal, whose header has their digest."""
    if not is_regular(run.folder.trained_rows):
        write_whole(run.folder.trained_rows, rows_as_bytes(run.task.fingerprints("train")))


def rows_as_bytes(fingerprints: Iterable[bytes]) -> bytes:
    """Fingerprints one after the other, each once, in order."""
    return b"".join(sorted(set(fingerprints)))


def rows_digest(fingerprints: Iterable[bytes]) -> str:
    """What a journal's header says of the training rows."""
    return hashlib.blake2b(rows_as_bytes(fingerprints), digest_size=16).hexdigest()


def trained_on(run: Run, header: Mapping[str, Any], name: str) -> list[str]:
    """How many examples of a set were trained on, by their text, in a sentence; none where none was."""
    known = _trained_rows(run, header)
    if known is None:
        return ["whether the run was trained on some of these examples is not known: its folder does not say"]
    asked = run.task.fingerprints(name)
    seen = sum(one in known for one in asked)
    if not seen:
        return []
    return [f"{seen} of these {len(asked)} examples were trained on, by their text: this score is flattered"]


def _trained_rows(run: Run, header: Mapping[str, Any]) -> set[bytes] | None:
    """The fingerprints of the training rows: the folder's, else those of the run's data where it has not changed."""
    expected = header.get("trained_rows")
    if expected is not None and is_regular(run.folder.trained_rows):
        data = read_regular(run.folder.trained_rows)
        found = {data[place : place + _BYTES] for place in range(0, len(data), _BYTES)}
        if rows_digest(found) == expected:
            return found
    same = run.task.has("train") and (not run.is_recorded or run.task.digest() == header["data"])
    return set(run.task.fingerprints("train")) if same else None

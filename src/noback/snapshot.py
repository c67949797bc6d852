"""Snapshots: the tuned tensors of a step on disk, written then renamed, and bound to their run's journal.

A snapshot carries the step, the run (the journal's digest before any step), the journal's running digest after that
step, and the digest of its tensors. One whose marks are not those of the journal beside it is passed over.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from noback.directions.cut import ALONE, Division
from noback.errors import NobackError
from noback.files import refuse_link
from noback.tensor_bytes import digest, write_tensors
from noback.weights import Weights

_NAME = re.compile(r"step-(\d{7,10})\.safetensors")


def save_snapshot(folder: Path, step: int, weights: Weights, digests: Sequence[bytes]) -> None:
    """Write the tuned tensors after `step` steps; `digests`: the journal's running ones."""
    refuse_link(folder)
    folder.mkdir(exist_ok=True)
    path = _path(folder, step)
    temporary = path.with_suffix(".new")
    try:
        temporary.unlink(missing_ok=True)  # a link there would be followed
        marks = {**_marks(step, digests), "digest": weights.digest()}
        if weights.is_divided:
            dtype = next(iter(weights.tensors.values())).dtype  # ranks that hold a model together have one
            write_tensors(temporary, weights.wholes, weights.shapes, dtype, marks)
        else:
            save_file(weights.tensors, temporary, metadata=marks)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise NobackError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; the journal is safe: "
            f"make room and go on with `noback resume {folder.parent}`"
        ) from None
    os.replace(temporary, path)


def show_snapshot(weights: Weights) -> None:
    """Show the rank that writes a snapshot what this one holds of it, as often as it asks: once to digest, once."""
    for tensors in (weights.wholes, weights.wholes):
        for name in sorted(tensors):
            _ = tensors[name]


def newest_snapshot(  # noqa: PLR0917 (the last has a default)
    folder: Path,
    at_most: int,
    digests: Sequence[bytes],
    like: Mapping[str, Tensor],
    say: Callable[[str], None],
    division: Division = ALONE,
) -> tuple[int, dict[str, Tensor]] | None:
    """The newest snapshot of this journal that is not past a step: (its step, its tensors).

    `digests`: the journal's running ones; `like`: tensors of the names, shapes and types that are expected, or, by
    `division`, parts of such: then the parts are what is given.
    One that is damaged or of another run is passed over, which is said.
    """
    refuse_link(folder)
    for step in sorted(_steps(folder), reverse=True):
        if step <= at_most:
            try:
                return step, _read(_path(folder, step), _marks(step, digests), like, division)
            except _Unsound as error:
                say(f"snapshot {_path(folder, step).name} is passed over: {error}; the journal serves in its place")
    return None


def newest_file(folder: Path) -> Path | None:
    """The newest snapshot's file, sound or not."""
    refuse_link(folder)
    return max((_path(folder, step) for step in _steps(folder)), default=None)


def prune_snapshots(folder: Path, *wanted: int) -> None:
    """Leave the newest snapshot up to each of the steps; delete others, and what a killed process left half-written."""
    refuse_link(folder)
    steps = _steps(folder)
    keep = {max((step for step in steps if step <= asked), default=None) for asked in wanted}
    for step in steps:
        if step not in keep:
            _path(folder, step).unlink()
    for half_written in folder.glob("step-*.new"):
        half_written.unlink()


def remove_snapshots(folder: Path) -> None:
    """Delete every snapshot: those of a journal that is about to be written anew; another rank may be at it too."""
    refuse_link(folder)
    for step in _steps(folder):
        _path(folder, step).unlink(missing_ok=True)


class _Unsound(Exception):
    """A snapshot that must not be used, and why."""


def _marks(step: int, digests: Sequence[bytes]) -> dict[str, str]:
    return {"step": str(step), "run": digests[0].hex(), "journal": digests[step].hex()}


class _InFile(Mapping[str, Tensor]):
    """The tensors of an open file, each read when it is asked for."""

    def __init__(self, file: Any, names: Collection[str]) -> None:
        self._file, self._names = file, names

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _read(path: Path, marks: Mapping[str, str], like: Mapping[str, Tensor], division: Division) -> dict[str, Tensor]:
    """The tensors, where the file is what this run wrote at this step; of a divided model never all together."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _Unsound("it is no regular file")
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
            _check_marks(found, marks)
            expected = {name: list(division.shape(name, tensor)) for name, tensor in like.items()}
            _check_shapes({name: file.get_slice(name).get_shape() for name in file.keys()}, expected)  # noqa: SIM118 (no mapping)
            stored = _InFile(file, like)
            tensors = stored if division.cuts else dict(stored)
            parts = {name: division.part(name, tensors[name]) for name in like}
            if any(tensor.dtype != like[name].dtype for name, tensor in parts.items()):
                raise _Unsound("its tensors are of another type than the model's")
            if digest(tensors) != found.get("digest"):
                raise _Unsound("its tensors are damaged: their digest does not fit")
    except (OSError, SafetensorError) as error:
        raise _Unsound(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return parts


def _check_marks(found: Mapping[str, Any], marks: Mapping[str, str]) -> None:
    reasons = {
        "run": "it is of another run, or of a noback that did not mark them",
        "step": f"it is of step {found.get('step', 'unknown')[:12]}",
        "journal": "the journal's records up to its step are not those it was made with",
    }
    for key, reason in reasons.items():
        if found.get(key) != marks[key]:
            raise _Unsound(reason)


def _check_shapes(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    if {name: list(shape) for name, shape in found.items()} != expected:
        raise _Unsound("its tensors have other names or shapes than those that are tuned")


def _steps(folder: Path) -> list[int]:
    """The steps whose snapshots lie in a folder; files of other names are not ours."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("step-*.safetensors"))
    return [int(match[1]) for match in found if match and _path(folder, int(match[1])).name == match[0]]


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:07d}.safetensors"

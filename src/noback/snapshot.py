"""Snapshots: the tuned tensors of a step on disk, written then renamed, read back only when their digest fits."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from noback.errors import NobackError
from noback.tensor_bytes import digest
from noback.weights import Weights

_ENDING = ".safetensors"


def save_snapshot(folder: Path, step: int, weights: Weights) -> None:
    """Write the tuned tensors after `step` steps."""
    folder.mkdir(exist_ok=True)
    path = _path(folder, step)
    temporary = path.with_suffix(".new")
    try:
        save_file(weights.tensors, temporary, metadata={"step": str(step), "digest": weights.digest()})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise NobackError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; the journal is safe: "
            f"make room and go on with `noback resume {folder.parent}`"
        ) from None
    os.replace(temporary, path)


def newest_snapshot(folder: Path, at_most: int) -> tuple[int, dict[str, Tensor]] | None:
    """The newest sound snapshot that is not past a step: (its step, its tensors)."""
    for step in sorted(_steps(folder), reverse=True):
        if step <= at_most:
            tensors = _read(_path(folder, step))
            if tensors is not None:
                return step, tensors
    return None


def prune_snapshots(folder: Path, *wanted: int) -> None:
    """Leave the newest snapshot up to each of the steps; delete others, and what a killed process left half-written."""
    steps = _steps(folder)
    keep = {max((step for step in steps if step <= asked), default=None) for asked in wanted}
    for step in steps:
        if step not in keep:
            _path(folder, step).unlink()
    for half_written in folder.glob("*.new"):
        half_written.unlink()


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors, or None where the file is not what was written."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            expected = (file.metadata() or {}).get("digest")
    except (OSError, SafetensorError):
        return None
    return tensors if digest(tensors) == expected else None


def _steps(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in folder.glob(f"step-*{_ENDING}")]


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:07d}{_ENDING}"

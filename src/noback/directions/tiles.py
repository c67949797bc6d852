"""How a GPU's sweeps are cut into programs: known for the GPU they were written on, timed once on any other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any


@dataclass(frozen=True, slots=True)
class Tile:
    """Sixteen rows of a matrix by `vector` columns a thread: what a program sweeps. Any gives the same bits."""

    vector: int
    warps: int
    registers: int | None = None  # a thread's, at most: fewer let more programs run side by side

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vector * 32 * self.warps

    @property
    def options(self) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {"VECTOR": self.vector, "BLOCK": self.columns, "num_warps": self.warps, "maxnreg": self.registers}


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of the two sweeps."""

    advanced: Tile
    perturbed: Tile


USUAL = {
    "float32": Tiles(Tile(2, 2), Tile(2, 2)),
    "bfloat16": Tiles(Tile(4, 2, 128), Tile(2, 2)),
}
_USUAL_ON = "NVIDIA H200"
TRIED = (Tile(2, 2), Tile(2, 4), Tile(4, 2), Tile(4, 2, 128), Tile(4, 4, 128))
_timing = Lock()  # two at once would slow each other
Seconds = Callable[[Tile], tuple[float, float]]  # of an advance and of a perturbation


def tiles_for(gpu: str, compiler: str, dtype: str, seconds: Seconds) -> Tiles:
    """The fastest tiles for a type of weights on a GPU; what was timed is read from the user's cache from then on."""
    if gpu == _USUAL_ON:
        return USUAL[dtype]
    file, key = _cache(), f"{gpu}, {compiler}, {dtype}"
    with _timing:
        known = _read(file)
        if key not in known:
            times = {tile: seconds(tile) for tile in TRIED}
            advanced, perturbed = (min(TRIED, key=lambda tile: times[tile][which]) for which in (0, 1))
            known[key] = asdict(Tiles(advanced, perturbed))
            _write(file, known)
    return Tiles(**{sweep: Tile(**numbers) for sweep, numbers in known[key].items()})


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noback" / "tiles.json"


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        if isinstance(found, dict):
            return {key: value for key, value in found.items() if _is_tiles(value)}
    return {}


def _is_tiles(value: Any) -> bool:
    with suppress(TypeError):
        tiles = [Tile(**value[sweep]) for sweep in Tiles.__slots__ if isinstance(value, Mapping) and sweep in value]
        return len(tiles) == len(Tiles.__slots__) == len(value) and set(tiles) <= set(TRIED)
    return False


def _write(file: Path, known: Mapping[str, Any]) -> None:
    """Where the cache cannot be written, the next process times anew."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(known, indent=2) + "\n")
        beside.replace(file)

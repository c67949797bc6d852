"""Where each rank of a run keeps its records, and how one that comes late gets those of the others.

Every rank takes every step and writes every record, so that nothing in the loop asks which rank it is. Rank 0's folder
is the run's. A rank that finds it on its own disk has a temporary folder for as long as the run goes. On another
machine the first rank keeps a folder at the same path there: the records outlive rank 0's machine. When ranks begin
again, whoever has the most records brings the others up to date, and what no snapshot holds is replayed.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from noback.distributed import World
from noback.errors import InputError
from noback.files import is_regular, read_regular, whole_file, write_whole
from noback.folder import RunFolder
from noback.snapshot import newest_file

_NOTHING = -1  # bytes of a journal where there is no run's folder either


@contextmanager
def own_folder(folder: RunFolder, world: World, *, fresh: bool = False) -> Iterator[RunFolder]:
    """The folder in which this rank keeps its records, brought up to date; `fresh`: no rank may have one yet."""
    if world.size == 1:
        yield folder
        return
    beside = _sees_first(folder, world) or os.environ.get("LOCAL_RANK", "0") != "0"
    keeps = world.is_first or not beside
    said = world.gathered(torch.tensor([_held(folder), int(keeps)]))
    held, keepers = [int(one) for one, _ in said], sum(int(one) for _, one in said)
    source = held.index(max(held))
    if fresh and held[source] != _NOTHING:
        folder.check_new()
        raise InputError(f"rank {source} has a run folder {str(folder.path)!r}; choose another with --out")
    with tempfile.TemporaryDirectory(prefix="noback-rank-") as parent:
        own = folder if keeps else RunFolder(Path(parent) / "run")
        if held[source] != _NOTHING:
            _catch_up(folder, own, world, source)
            if keepers > 1:
                _fetch_snapshot(folder.snapshots, world, source, keeps=keeps)
        # Those of its machine, where another rank keeps them.
        own.snapshots, own.data = folder.snapshots, folder.data
        yield own


def _sees_first(folder: RunFolder, world: World) -> bool:
    """Whether this rank has rank 0's disk: it finds a file that rank 0 puts beside the run's folder for a moment."""
    parent = folder.path.parent
    token = parent / f".noback-{secrets.token_hex(8)}"
    if world.is_first:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            token.touch(exist_ok=False)
        except OSError:
            token = Path()  # the run's folder cannot be made either, which is said where it is
    name = world.from_rank(0, token.name.encode()).decode()
    # A listing, not a question after the name: a network disk may remember that a name was not there.
    sees = not name or (parent.is_dir() and parent / name in parent.iterdir())
    world.gathered(torch.tensor([sees]))  # all have looked
    if world.is_first and name:
        token.unlink(missing_ok=True)
    return sees


def _held(folder: RunFolder) -> int:
    """How many bytes of records are here."""
    if folder.journal.is_file():
        return folder.journal.stat().st_size
    return 0 if folder.path.exists() else _NOTHING


def _catch_up(folder: RunFolder, own: RunFolder, world: World, source: int) -> None:
    """Give every rank the files of the one that has the most records, those of a model's weights apart."""
    mine = read_regular(own.journal) if is_regular(own.journal) else b""
    journal = world.from_rank(source, mine)
    world.agree(f"run in {str(folder.path)!r}", "" if journal.startswith(mine) else "another")
    if world.rank != source:
        own.path.mkdir(parents=True, exist_ok=True)
        if journal and journal != mine:
            write_whole(own.journal, journal)
    for path in (own.config, own.metrics, own.trained_rows):
        _copied(path, world, source)
    rows = sorted(path.name for path in folder.data.iterdir()) if folder.data.is_dir() else []
    for name in filter(None, world.from_rank(source, "\n".join(rows).encode()).decode().split("\n")):
        _copied(own.data / Path(name).name, world, source)


def _copied(path: Path, world: World, source: int) -> None:
    told = world.from_rank(source, b"+" + read_regular(path) if world.rank == source and is_regular(path) else b"-")
    if world.rank != source and told[:1] == b"+" and not (is_regular(path) and read_regular(path) == told[1:]):
        path.parent.mkdir(exist_ok=True)
        write_whole(path, told[1:])


def _fetch_snapshot(folder: Path, world: World, source: int, *, keeps: bool) -> None:
    """Give those that keep a folder the newest snapshot; one that does not fit is passed over when it is read."""
    newest = newest_file(folder)
    name = Path(world.from_rank(source, newest.name.encode() if newest else b"").decode()).name
    if not name or all(bool(has) for has in world.gathered(torch.tensor([not keeps or (folder / name).is_file()]))):
        return
    if keeps and world.rank != source:
        folder.mkdir(exist_ok=True)
        with whole_file(folder / name) as file:
            for chunk in world.file_from(source, None):
                file.write(chunk)
        return
    for _ in world.file_from(source, folder / name if world.rank == source else None):
        continue

"""Rows that are given in memory: kept in the run's folder as data files, so that the run is one like any other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from noback.config import RunConfig
from noback.distributed import refuse_ranks
from noback.errors import InputError
from noback.folder import RunFolder, next_folder
from noback.tasks import data_files

Place = str | os.PathLike[str] | None


def is_named(thing: object) -> bool:
    """Whether data or a model is given by a name or a path, or not at all, rather than itself."""
    return thing is None or isinstance(thing, str | os.PathLike)


@contextmanager
def keeping_rows(config: RunConfig, data: object, out: Place) -> Iterator[tuple[RunConfig, Place | RunFolder]]:
    """The configuration that names the rows' files, and the folder that they are in; `data` none: as they were.

    Where the run does not begin, the folder goes again, and an error speaks of `data`, not of files.
    """
    if data is None:
        yield config, out
        return
    refuse_ranks("data in memory is", "give it as a file or a folder")
    named = replace(config, data="rows")  # what a task of one's own template and words is called
    folder = RunFolder(out if out is not None else next_folder(Path("runs"), Path(named.task_name).stem))
    folder.check_new()
    files = data_files(data, named.spec())
    folder.keep_data(files)
    try:
        yield replace(config, data=str(folder.data.resolve())), folder
    except BaseException as error:
        if folder.config.exists():
            raise
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, InputError):
            raise InputError(_of_data(str(error), folder.data.resolve(), list(files))) from None
        raise


def _of_data(sentence: str, folder: Path, files: list[str]) -> str:
    """A sentence about files that are gone, as one about what was given."""
    for name in files:
        split = name.removesuffix(".jsonl")
        sentence = sentence.replace(repr(str(folder / name)), "data" if len(files) == 1 else f"data[{split!r}]")
    return sentence.replace(repr(str(folder)), "data")

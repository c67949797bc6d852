"""A base as a run on a server sees it: its form without memory, its tokenizer, and the digest that its files give."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from noback.embedded import MODELS
from noback.engines.loading import Opened, open_form
from noback.engines.stored import INDEX, ONE, NotStreamed, open_stored


def open_outline(name: str, dtype: str) -> tuple[Opened, str]:
    """The form of a causal base and the digest of its weights, read from its files; "" where these are not at hand."""
    folder = _folder(name)
    if not any((folder / file).is_file() for file in (ONE, INDEX)):
        return open_form(name, dtype), ""
    try:
        opened, stored = open_stored(str(folder), dtype, causal=True)
    except NotStreamed:
        return open_form(name, dtype), ""
    return opened, stored.digest(stored.shapes)


@cache
def is_same_model(name: str, other: str) -> bool | None:
    """Whether two names stand for the same weights; None: it cannot be told here."""
    if name == other or _folder(name).resolve() == _folder(other).resolve():
        return True
    if not (_folder(name).is_dir() and _folder(other).is_dir()):
        return None
    try:
        one, another = (open_outline(each, "float32")[1] for each in (name, other))
    except Exception:  # noqa: BLE001 (a folder that cannot be opened here tells nothing)
        return None
    return one == another if one and another else None


def _folder(name: str) -> Path:
    """A model's folder: its own, or the hub's copy on this machine."""
    folder = Path(MODELS.get(name, name))
    if folder.is_dir() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return folder
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except Exception:  # noqa: BLE001 (it is not there, in one of many ways)
        return folder

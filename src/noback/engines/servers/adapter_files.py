"""Adapters as folders, for servers that read them from a disk that both processes see."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from noback.engines.servers.server import Copy
from noback.errors import InputError
from noback.json_text import json_text

_OURS = re.compile(r"noback-adapters-(\d+)-\w+")  # the process that made a temporary folder stands in its name


class AdapterFiles:
    """A folder with a folder for each adapter, none of which ever has a path that another had."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` none: a temporary one, which goes with `close`."""
        self._given, self._temporary = folder, None if folder else _Temporary()

    def write(self, name: str, copy: Copy) -> Path:
        """A new folder with the adapter, as PEFT has it."""
        parent = self._temporary.path() if self._temporary else self._existing()
        path = parent / f"{name}-{secrets.token_hex(8)}"
        path.mkdir()
        (path / "adapter_config.json").write_text(json_text(dict(copy.config), sort_keys=True), encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in copy.tensors.items()},
                  path / "adapter_model.safetensors", metadata={"format": "pt"})  # fmt: skip
        return path

    def remove(self, path: Path) -> None:
        """Remove an adapter's folder; one that is gone is gone."""
        shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove the temporary folder with all that is in it."""
        if self._temporary:
            self._temporary.remove()

    def _existing(self) -> Path:
        folder = (self._given or Path()).expanduser().resolve()
        if not folder.is_dir():
            raise InputError(
                f"folder {str(folder)!r} for adapters does not exist; expected one that the server sees under the same "
                "path: make it, or name another (--folder)"
            )
        return folder


class _Temporary:
    """A temporary folder that is made when it is asked for; those of processes that have ended go then."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def path(self) -> Path:
        """The folder."""
        if self._path is None:
            _sweep(Path(tempfile.gettempdir()))
            self._path = Path(tempfile.mkdtemp(prefix=f"noback-adapters-{os.getpid()}-"))
            self._path.chmod(0o755)  # the server may be another user's process
        return self._path

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None


def _sweep(parent: Path) -> None:
    """Remove what killed processes of this user left."""
    for path in parent.glob("noback-adapters-*"):
        found = _OURS.fullmatch(path.name)
        if found and not path.is_symlink() and path.stat().st_uid == os.getuid() and not is_alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True

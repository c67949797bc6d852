"""What a results file says about where its figures come from."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("noback", "torch", "transformers", "triton", "numba", "numpy", "peft")


def machine(device: torch.device) -> dict[str, Any]:
    """The device, the processor, the versions, the commit where this is a checkout, and the date."""
    return {
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit; None where noback is installed otherwise, even inside someone else's checkout."""
    package = Path(__file__).parents[1]
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = _git(package, "rev-parse", "--short", "HEAD")
    if not tracked or not commit:
        return None
    return commit + ("-dirty" if _git(package, "status", "--porcelain", ".") else "")


def _git(folder: Path, *words: str) -> str | None:
    try:
        ran = subprocess.run(["git", *words], capture_output=True, text=True, cwd=folder, check=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()

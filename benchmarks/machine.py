"""What a results file says about where its figures come from."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

import torch


def machine() -> dict:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent, check=True
        ).stdout.strip()

    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("noback", "torch", "transformers", "numba", "numpy")},
        "commit": git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "src") else ""),
        "date": time.strftime("%Y-%m-%d"),
    }

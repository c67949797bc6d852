"""The most memory that was held, by this process or on a GPU, counted anew from a chosen moment."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def forget_peak() -> None:
    """Count the peaks from now on: those of the GPUs, and on Linux that of the process, which elsewhere stays."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """The peak in bytes of what tensors hold on a GPU; for a CPU, of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

"""The most memory that was held, by this process or on a GPU, counted anew from a chosen moment."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

_aside: dict[torch.device, int] = {}  # of a GPU: the peak before it was set aside


def forget_peak() -> None:
    """Count the peaks from now on: those of the GPUs, and on Linux that of the process, which elsewhere stays."""
    _aside.clear()
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
        return max(torch.cuda.max_memory_allocated(device), _aside.get(device, 0))
    try:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def set_peak_aside(device: torch.device) -> None:
    """Let PyTorch count a GPU's peak from now on, such as one forward's; `peak_memory` still knows the whole's."""
    _aside[device] = peak_memory(device)
    torch.cuda.reset_peak_memory_stats(device)

"""How a step is measured: its time after a warm-up, the peak of memory during that, and the speed of a sweep."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from noback.errors import NobackError
from noback.memory import forget_peak, peak_memory
from noback.values import Move, Term
from noback.weights import Weights

Step = Callable[[], object]
Tell = Callable[[str, int, int], None]  # what is going on, done, of; it raises Stopped when that is asked
WARM_UP = 4  # steps; an engine checks itself in the first, and may compile or capture in the next
_SWEEPS = 10
_IN_A_ROW = 5  # steps on a CUDA device between two waits
_SWEEPS_IN_A_ROW = 20  # so that the first one's way to the device weighs little
MOVE = Move((Term(1, 1e-12),))  # hardly any


class Stopped(Exception):
    """The person asked to stop."""


@dataclass
class Measured:
    """What was seen of one contender; `gap` says why there is nothing to see."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    gap: str | None = None
    note: str | None = None

    @property
    def median(self) -> float | None:
        """Seconds a step."""
        return statistics.median(self.seconds) if self.seconds and self.gap is None else None


class Meter:
    """Measures contenders on one device; `found` holds what is there so far."""

    def __init__(self, device: torch.device, repeats: int, tell: Tell) -> None:
        self._device, self._repeats, self._tell = device, repeats, tell
        self.found: dict[str, Measured] = {}

    def measure(self, makers: Mapping[str, Callable[[], Step]]) -> None:
        """Make and warm up each contender by itself, then time them in turns: the machine's moods fall on all."""
        steps: dict[str, Step] = {}
        for name, make in makers.items():
            one = self.found[name] = Measured()
            with gap_in(one):
                steps[name] = self._warmed(name, make, one)
        what = f"timing {len(steps)} steps in turns" if len(steps) > 1 else f"timing {' '.join(steps)}"
        for turn in range(self._repeats):
            for name, step in steps.items():
                self._tell(what, turn, self._repeats)
                one = self.found[name]
                with gap_in(one):
                    if one.gap is None:
                        one.seconds.append(seconds_of(step, self._device))

    def _warmed(self, name: str, make: Callable[[], Step], one: Measured) -> Step:
        """The contender after its warm-up, in which its peak is taken.

        On a CUDA device all of it counts: a captured graph's memory is not seen when the graph is replayed. On a CPU
        the first step does not: compilers of kernels take memory there once.
        """
        release(self._device)
        restart_peak(self._device)
        step = make()
        for turn in range(WARM_UP):
            self._tell(f"warming up {name}", turn, WARM_UP)
            if turn == 1 and self._device.type != "cuda":
                restart_peak(self._device)
            step()
        one.peak_bytes, one.note = peak_memory(self._device), getattr(step, "note", None)
        return step


@contextmanager
def gap_in(one: Measured) -> Iterator[None]:
    """Within, what goes wrong becomes a named gap, so that one contender's trouble does not cost the others."""
    try:
        yield
    except Stopped:
        raise
    except NobackError as error:
        one.gap = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 (compilers, drivers and allocators fail in many ways)
        one.gap = "out of memory" if _is_memory(error) else _sentence(error)


def sweep(weights: Weights, device: torch.device, directions: int = 1) -> dict[str, float]:
    """The in-place update of all tuned weights against a copy of as many bytes, each read once and written once.

    Low-rank noise writes back what changed alone, and a move of hardly any length changes hardly a bfloat16.
    """
    move = Move(tuple(Term(seed, 1e-12) for seed in range(1, directions + 1)))
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors.values())
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds: dict[str, list[float]] = {"noback": [], "copy": []}
    for turn in range(_SWEEPS + 2):
        for name, call in (("noback", lambda: weights.advance([move])), ("copy", lambda: target.copy_(source))):
            taken = clocked(call, device)
            if turn >= 2:  # the first two warm up
                seconds[name].append(taken)
    rates = {name: 2 * size / statistics.median(taken) / 1e9 for name, taken in seconds.items()}
    return {
        "bytes": 2 * size,
        "noback_gigabytes_a_second": rates["noback"],
        "copy_gigabytes_a_second": rates["copy"],
        "share_of_copy": rates["noback"] / rates["copy"],
    }


def seconds_of(step: Step, device: torch.device) -> float:
    """A step's seconds by the clock on the wall, the device's work included.

    On a CUDA device a few steps in a row are timed, as training takes them: the CPU prepares while the device works.
    """
    steps = _IN_A_ROW if device.type == "cuda" else 1
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - began) / steps


def clocked(call: Step, device: torch.device) -> float:
    """Seconds of a call between two events on the device, some in a row; on a CPU, by the clock on the wall."""
    if device.type != "cuda":
        return seconds_of(call, device)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    wait(device)
    began.record()
    for _ in range(_SWEEPS_IN_A_ROW):
        call()
    ended.record()
    wait(device)
    return float(began.elapsed_time(ended)) / 1e3 / _SWEEPS_IN_A_ROW


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Let go of what earlier contenders held."""
    gc.collect()
    if device.type == "cuda":
        torch._dynamo.reset()
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream ever used, else counted for the next
        gc.collect()
        torch.cuda.empty_cache()


def restart_peak(device: torch.device) -> None:
    """Count the peak from what is held now."""
    if device.type == "cpu":
        with suppress(OSError, AttributeError):  # another C library: its peaks hold what came before
            ctypes.CDLL(None).malloc_trim(0)
    forget_peak()


def _is_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__

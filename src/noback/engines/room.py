"""How much goes through the model at once: what a forward took of a GPU's memory tells what a larger one will take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from noback.engines.graphs import Graphs
from noback.memory import set_peak_aside

_SHARE = 0.7  # of the free memory; on an H200 an allocator's broken pieces were seen to cost more than a fifth
_SMALL = 4096  # cells; a first forward of no more is not tried: at five thousand columns it takes about half a GB
_TRIED = 8  # an eighth of the examples is tried: more may not fit, less overstates what perturbed weights take a cell
_GIB = 2**30


class Memory(Protocol):
    """What is asked of a device about its memory, in bytes."""

    def allocated(self) -> int:
        """What tensors hold now."""
        ...

    def restart_peak(self) -> None:
        """Count the peak from now on."""
        ...

    def peak(self) -> int:
        """The most that tensors held since then."""
        ...

    def free(self) -> int:
        """What a forward can have."""
        ...


class GpuMemory:
    """The memory of one GPU."""

    def __init__(self, device: torch.device, graphs: Graphs) -> None:
        self._device, self._graphs = device, graphs

    def allocated(self) -> int:
        """What tensors hold now."""
        return torch.cuda.memory_allocated(self._device)

    def restart_peak(self) -> None:
        """Count the peak from now on; the run's own peak is not lost."""
        set_peak_aside(self._device)

    def peak(self) -> int:
        """The most that tensors held since then."""
        return torch.cuda.max_memory_allocated(self._device)

    def free(self) -> int:
        """The driver's free bytes and the allocator's idle ones, but for those that captured forwards keep.

        What the allocator can give back goes back first: pieces left by smaller forwards would not hold a larger one's.
        """
        torch.cuda.empty_cache()
        idle = torch.cuda.memory_reserved(self._device) - self.allocated()
        return torch.cuda.mem_get_info(self._device)[0] + max(idle - self._graphs.held, 0)


@dataclass(frozen=True, slots=True)
class Size:
    """How large a forward is."""

    points: int
    rows: int
    tokens: int
    displaced: bool  # whether weights are perturbed for it

    @property
    def cells(self) -> int:
        """The tokens of all rows at all points."""
        return self.points * self.rows * self.tokens


class Room:
    """Learns from the largest forwards what a larger one will take, and cuts it before it runs where that is not free.

    A forward takes so many bytes a cell, and some for a layer's perturbed weights. Of the largest one so far, bytes
    divided by cells is thus more than a larger one takes a cell; where its rows are longer too, a plain attention grows
    with the square of their tokens, and all of it is taken to grow so. What was cut for too high a guess teaches
    a better one: each forward that should take more than any before is watched, the first time that its size is seen.
    """

    def __init__(self, memory: Memory, say: Callable[[str], None]) -> None:
        self._memory, self._say = memory, say
        self._largest: dict[bool, tuple[Size, int]] = {}  # displaced or not: a forward's size and the bytes it took
        self._seen: set[Size] = set()
        self._cuts: dict[tuple[Size, int], tuple[int, int]] = {}
        self._said = False

    def trial(self, size: Size, examples: int) -> int:
        """How many of the examples to try first, where nothing tells what a large forward will take; 0: none."""
        known = size.displaced in self._largest
        return 0 if known or size.cells <= _SMALL or size.points * examples == 1 else -(-examples // _TRIED)

    def fitting(self, size: Size, examples: int) -> tuple[int, int]:
        """How many points and how many of the examples fit at once; the device is asked once about a size."""
        if size in self._seen or size.displaced not in self._largest:
            return size.points, examples
        if self._need(size) <= self._largest[size.displaced][1]:  # as much has run
            return size.points, examples
        key = size, examples
        if key not in self._cuts:
            self._cuts[key] = self._cut(size, examples)
        return self._cuts[key]

    @contextmanager
    def watching(self, size: Size) -> Iterator[None]:
        """Within, a forward of this size runs; what it took is kept if it should have taken more than any before."""
        new, largest = size not in self._seen, self._largest.get(size.displaced)
        if not new or (largest is not None and self._need(size) <= largest[1]):
            yield
            self._seen.add(size)
            return
        before = self._memory.allocated()
        self._memory.restart_peak()
        yield
        self._seen.add(size)
        self._largest[size.displaced] = size, self._memory.peak() - before
        self._cuts.clear()

    def _need(self, size: Size) -> float:
        """The bytes that a forward should take."""
        largest, took = self._largest[size.displaced]
        return took * size.cells / largest.cells * max(1.0, size.tokens / largest.tokens)

    def _cut(self, size: Size, examples: int) -> tuple[int, int]:
        """Half the points, and where there is one, half the examples, until they fit or are one."""
        free, points, count = self._memory.free(), size.points, examples

        def need() -> float:
            return self._need(replace(size, points=points, rows=-(-size.rows * count // examples)))

        whole = need()
        while need() > _SHARE * free and points * count > 1:
            if points > 1:
                points = -(-points // 2)
            else:
                count = -(-count // 2)
        if whole > _SHARE * free and not self._said:
            self._said = True
            self._say(
                f"{size.points} points and {examples} examples of {size.tokens} tokens would take about "
                f"{whole / _GIB:.1f} GiB of GPU memory and {free / _GIB:.1f} GiB are free; what is too large is cut, "
                f"here to {points} points and {count} examples at a time"
            )
        return points, count

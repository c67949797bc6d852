"""Forwards captured as CUDA graphs, one a shape, and replayed with other values: a step is then one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
_MOST = 64  # captured shapes; what comes after them runs plainly


@dataclass(frozen=True, slots=True)
class _Captured:
    graphs: list[Any]  # replayed one after the other
    inputs: dict[str, Tensor]  # where a replay reads
    output: Tensor  # where it writes


class Graphs:
    """Runs a forward on the GPU: a shape's first time plainly, its second captured, from then on replayed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One stream for plain and captured forwards: a library's workspace belongs to a stream, and two would be held.
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _Captured] = {}
        self._pool: Any = None
        self._capturing: list[Any] = []
        self._source: object = None
        self.refused: str | None = None  # why a forward could not be captured

    def __call__(self, key: Hashable, inputs: Inputs, forward: Callable[[Inputs], Tensor]) -> Tensor:
        """The forward's output; `key` says what besides the inputs' shapes a captured forward depends on."""
        key = (key, *((name, tuple(tensor.shape)) for name, tensor in inputs.items()))
        found = self._captured.get(key)
        if found is None and key in self._seen and self.refused is None and len(self._captured) < _MOST:
            found = self._capture(key, inputs, forward)
        if found is None:
            output = forward(self.brought(inputs))
            self._seen.add(key)
            return output
        for name, tensor in inputs.items():
            found.inputs[name].copy_(_pinned(tensor), non_blocking=True)
        for graph in found.graphs:
            graph.replay()
        return found.output.clone()  # the next replay writes over it

    def brought(self, inputs: Inputs) -> dict[str, Tensor]:
        """The inputs on the device."""
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in inputs.items()}

    @property
    def captured(self) -> tuple[int, ...]:
        """Of how many graphs each captured forward is."""
        return tuple(len(one.graphs) for one in self._captured.values())

    @property
    def capturing(self) -> bool:
        """Whether a forward is captured now."""
        return bool(self._capturing)

    def cut(self) -> None:
        """While a forward is captured, end a graph and begin the next: the GPU starts while the rest is launched."""
        if len(self._capturing) == 1:
            self._capturing[-1].capture_end()
            self._begin()

    def made_for(self, source: object) -> None:
        """What is captured from now on reads from a source; what was captured from another is void."""
        if source is not self._source:
            self.forget()
            self._source = source

    def forget(self) -> None:
        """Give the memory of the captured forwards back."""
        self._captured.clear()
        self._seen.clear()
        self._pool = None
        torch.cuda.empty_cache()

    def _capture(self, key: Hashable, inputs: Inputs, forward: Callable[[Inputs], Tensor]) -> _Captured | None:
        held = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        torch.cuda.synchronize(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            gc.collect()  # once: where a program holds many objects, such as a data set, it takes long
        torch.cuda.empty_cache()
        try:
            with torch.cuda.stream(self.stream), _nothing_collected(), self._begun():
                output = forward(held)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (a model may do what cannot be captured, such as asking for a value)
            self.refused = f"{type(error).__name__}: {error}".splitlines()[0]
            self._leave_capture()
            return None
        finally:
            graphs, self._capturing = self._capturing, []
        self._captured[key] = _Captured(graphs, held, output)
        return self._captured[key]

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._capturing[-1].capture_end()

    def _begin(self) -> None:
        self._capturing.append(torch.cuda.CUDAGraph())
        self._capturing[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _leave_capture(self) -> None:
        """A capture that failed may leave torch's allocator and random numbers as if it still went on."""
        torch.cuda.synchronize(self._device)
        place = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(AttributeError, RuntimeError):  # newer versions of torch have ended it themselves
            torch._C._cuda_endAllocateToPool(place, self._pool)
        with suppress(AttributeError, RuntimeError):
            numbers = torch.cuda.default_generators[place]
            numbers.graphsafe_set_state(numbers.clone_state())  # the same numbers, outside any capture


def _pinned(tensor: Tensor) -> Tensor:
    """The tensor where a GPU can fetch it while the host goes on."""
    return tensor if tensor.is_cuda else tensor.pin_memory()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Within, Python collects no garbage: nothing is to be freed while a stream is captured."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

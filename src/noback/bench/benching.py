"""The bench itself: makes the subject, lets the contenders take their steps, and gives the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from noback.adapters import Full, Lora
from noback.bench.case import BenchCase
from noback.bench.contenders import NobackStep, Tuned, adam, reference, ways
from noback.bench.machine import machine
from noback.bench.measuring import MOVE, Measured, Meter, Step, Stopped, Tell, gap_in, release, sweep
from noback.bench.subject import Subject, subject_of
from noback.bench.table import rows, way_rows
from noback.errors import InputError
from noback.watching import Silent, Watcher
from noback.weights import DTYPES, Weights

ADAPTERS = {"full": Full, "lora": Lora}
Maker = Callable[[Subject, Tuned, BenchCase], Step]
TRAINED: dict[str, Maker] = {"noback": NobackStep, "reference": reference, "adam": adam}
Group = Mapping[str, Callable[[], Step]]


def bench(
    case: BenchCase, *, watcher: Watcher | None = None, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Every figure of a case, as JSON holds it; stopped early, what is there so far."""
    watcher = watcher or Silent()
    subject = subject_of(case, watcher.note)

    def tell(what: str, done: int, total: int) -> None:
        if stop():
            raise Stopped
        watcher.progress(what, done, total)

    return bench_subject(subject, case, tell)


def bench_subject(subject: Subject, case: BenchCase, tell: Tell) -> dict[str, Any]:
    """The figures of a model and a batch that are there already."""
    meter = Meter(subject.device, case.repeats, tell)
    swept: dict[str, Any] = {"gap": "stopped"}
    parameters, tuned, stopped = sum(tensor.numel() for tensor in subject.model.parameters()), 0, False
    with _products_in(case, subject.device):
        if subject.device.type == "cpu":
            _load_kernels(DTYPES[case.dtype])
        try:
            weights = _measure(meter, subject, case)
            tuned = sum(tensor.numel() for tensor in weights.values())
            tell("sweeping", 0, 1)
            swept = _swept(weights, subject.device, case)
        except Stopped:
            stopped = True
    names = list(ways(subject.device))
    return {
        "machine": machine(subject.device),
        "case": case.table() | {"device": subject.device.type, "parameters": parameters, "tuned": tuned},
        "contenders": rows(meter.found, names, case),
        "ways": way_rows(meter.found, names),
        "sweep": swept,
        "stopped": stopped,
    }


def _measure(meter: Meter, subject: Subject, case: BenchCase) -> Tuned:
    """Let everyone take their steps; the tuned tensors, none where the adapter cannot be attached.

    On a CPU those who keep nothing between steps take turns. On a CUDA device each goes alone: a captured graph
    remembers where the weights stand, and the reference MeZO moves them. Plain forwards come before the adapter.
    """
    ran = {} if "forwards" in case.without else ways(subject.device)
    bare: Group = {name: partial(make, subject) for name, make in ran.items() if name not in case.without}
    names = [name for name in TRAINED if name not in case.without]
    if case.adapter == "full" and subject.device.type == "cpu":
        tuned = _attached(subject, case)
        meter.measure({**bare, **_makers(subject, tuned, case, [name for name in names if name != "adam"])})
        meter.measure(_makers(subject, tuned, case, [name for name in names if name == "adam"]))
        return tuned
    for name, make in bare.items():
        meter.measure({name: make})
    try:
        tuned = _attached(subject, case)
    except InputError as error:
        meter.found |= {name: Measured(gap=str(error)) for name in names}
        return {}
    for name in names:
        meter.measure(_makers(subject, tuned, case, [name]))
    return tuned


def _attached(subject: Subject, case: BenchCase) -> Tuned:
    adapter: Full | Lora = ADAPTERS[case.adapter]()
    return adapter.attach(subject.model, (), 0)


def _makers(subject: Subject, tuned: Tuned, case: BenchCase, names: list[str]) -> Group:
    return {name: partial(TRAINED[name], subject, tuned, case) for name in names}


def _swept(tuned: Tuned, device: torch.device, case: BenchCase) -> dict[str, Any]:
    if not tuned:
        return {"gap": "nothing is tuned"}
    seen, figures = Measured(), {}
    for tensor in tuned.values():
        tensor.grad = None  # left where Adam ran out of memory
    release(device)
    with gap_in(seen):
        figures = sweep(Weights(tuned, case.noise or case.estimator.usual_noise), device, case.directions)
    return {**figures, "gap": seen.gap}


def _load_kernels(dtype: torch.dtype) -> None:
    """Load the noise's compiler now: its memory is the process's, and would be taken for a contender's."""
    weights = Weights({"any": torch.zeros(16, 16, dtype=dtype)})
    weights.perturbed("any", [MOVE])
    weights.advance([MOVE])


@contextmanager
def _products_in(case: BenchCase, device: torch.device) -> Iterator[None]:
    """Within, float32 products on a CUDA device are rounded to TF32 or not, as the case says."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.matmul_precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

"""The functions of `noback` as people call them: options by keyword, a callback, a result also where a run stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast

from noback import baselines, comparing, sweeping, training
from noback.baselines import Baseline
from noback.comparing import COMPARED
from noback.config import RunConfig
from noback.engines import AnyEngine, Opened, device_of, dtype_of, loaded_model, name_of
from noback.errors import InputError
from noback.events import Callback, Calling
from noback.keeping import is_named, keeping_rows
from noback.keywords import config_with
from noback.measuring_eps import EPS, MEASURED, measure_eps
from noback.option_types import CompareOptions, MeasureOptions, TrainOptions
from noback.options import whole
from noback.result import Result
from noback.tables import Comparison, EpsTable
from noback.watching import Several, Silent, Watcher


def train(  # noqa: PLR0913 (options by name)
    config: RunConfig | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    data: object = None,
    model: object = None,
    tokenizer: object = None,
    callback: Callback | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] | None = None,
    health_every: int | None = None,
    divide: str = "examples",
    tensor_parallel: int = 1,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train from the start in a new run folder, `out` or the next free `runs/TASK-NUMBER`.

    Options are those of `noback train` by the names of its flags (`lr=1e-5, adapter="lora"`), and win over `config`.

    `data` is a file, a folder or `hf:NAME`, as on the command line; or a list of rows (dicts), a pandas data frame, a
    `datasets.Dataset`, or a dict of splits of these, which the run keeps in its folder as `data/`.

    `model` is a name or a folder; or a loaded transformers model with `tokenizer=`, or a tuple of both. A loaded model
    is tuned in place, where it is and in the type it has: at the end it holds the run's best weights, its readout in
    the decoder's rows, and with an adapter the adapter's layers too.

    `callback` is called with an `Event` after each step and each evaluation. `event.stop()`, or a true answer of
    `stop`, which is asked before each step and may be told by another thread, ends the call before the next step with
    the result so far: its `stopped` is true, and `noback.resume(result.run)` goes on. An exception in a callback leaves
    the run as a kill does: it can be resumed too.

    `health_every`: so often, two more forwards see the curvature and whether the step lowered the loss.
    `divide`: what the ranks of a run under torchrun share: examples, points or both. Rank 0's folder is the run's.
    `tensor_parallel`: how many of the ranks hold one model together, each a part of it.
    """
    loaded, named = _model(model, tokenizer, options)
    if data is not None and is_named(data):
        named["data"] = data
    made, calling = config_with(config, {**options, **named}), Calling(callback or _ignore)
    with keeping_rows(made, None if is_named(data) else data, out) as (told, folder):
        return training.train(
            told,
            folder,
            watcher=Several([watcher or Silent(), calling]),
            stop=lambda: calling.stopped or (stop is not None and stop()),
            health_every=health_every,
            divide=divide,
            tensor_parallel=tensor_parallel,
            result_of_stopped=True,
            loaded=loaded,
        )


def resume(  # noqa: PLR0913 (options by name)
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    callback: Callback | None = None,
    watcher: Watcher | None = None,
    model: str | os.PathLike[str] | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
    trust: bool = False,
    stop: Callable[[], bool] | None = None,
    health_every: int | None = None,
    divide: str = "examples",
    tensor_parallel: int = 1,
) -> Result:
    """Go on with a run from where its folder says it is.

    `model`, `device`, `engine`, `url`: where base, run and what scores are, if not where they were.
    `steps`: make the run longer, to so many steps in all; it ends as one of so many from the start.
    `trust`: whether a function that the folder names may be imported and called. `callback` and `stop` are as in
    `noback.train`, and so are `divide` and `tensor_parallel`; there need not be as many ranks as there were, nor need
    they hold the same parts.
    """
    calling = Calling(callback or _ignore)
    return training.resume(
        path,
        steps=steps,
        watcher=Several([watcher or Silent(), calling]),
        model=None if model is None else os.fspath(model),
        device=device,
        engine=engine,
        url=url,
        trust=trust,
        stop=lambda: calling.stopped or (stop is not None and stop()),
        health_every=health_every,
        divide=divide,
        tensor_parallel=tensor_parallel,
        result_of_stopped=True,
    )


def compare(
    config: RunConfig | None = None,
    objectives: Sequence[str] = COMPARED,
    out: str | os.PathLike[str] | None = None,
    *,
    eps: float | Sequence[float] = (),
    watcher: Watcher | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Train once for each objective and eps with the same data, seeds and budget, as `noback compare` does.

    Each run is an ordinary one in a folder inside `out`, or the next free `runs/TASK-compare-NUMBER`; `rows` of what
    comes back has one entry a run.
    """
    several = [eps] if isinstance(eps, int | float) else list(eps)
    _check_named(options)
    made = config_with(config, {**options, **({"eps": several[0]} if several else {})})
    return cast("Comparison", comparing.compare(made, objectives, several, out, watcher=watcher))


def sweep(
    config: RunConfig | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> dict[str, Any]:
    """Train once for each combination of some options' values, as `noback sweep` does.

    An option that is a list is swept over, `lr=[1e-6, 1e-5], seed=[0, 1]`; others are those of `noback.train`. `over`
    says the same as a table, by flag's name or place in the configuration (`rule.lr`). The setting with the highest
    mean validation score over the seeds wins, of equal ones that with the lower mean loss: `winner` of what comes
    back. Given again, a sweep goes on; by default its folder is named after what it sweeps over.
    """
    _check_named(options)
    lists = {name: value for name, value in options.items() if isinstance(value, list | tuple)}
    made = config_with(config, {name: value for name, value in options.items() if name not in lists})
    config_with(made, {name: values[0] for name, values in lists.items() if values})  # refuses an unknown name
    return sweeping.sweep(made, {**(over or {}), **lists}, out, watcher=watcher, stop=stop)


def epsilon(
    config: RunConfig | None = None,
    at: Sequence[float] = EPS,
    objectives: Sequence[str] = MEASURED,
    *,
    probes: int = 32,
    out: str | os.PathLike[str] | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[MeasureOptions],
) -> EpsTable:
    """Measure what eps does to the slopes, without training, as `noback epsilon` does.

    `at`: the eps to measure; the option `eps` is the reference. `probes`: directions, each with a batch of its own.
    `recommendations` of what comes back has the eps to use for each objective, and why.
    """
    whole("probes", probes, 2**16)
    _check_named(options)
    made = config_with(config, options)
    table = measure_eps(made, at, objectives, directions=probes, out=out, watcher=watcher)
    return cast("EpsTable", table)


def baseline(
    method: str, config: RunConfig | None = None, *, watcher: Watcher | None = None, **options: Unpack[MeasureOptions]
) -> Baseline:
    """What the same data and evaluation give by `method`, zero-shot, probe or adam, as `noback baseline` does.

    The option `lr` is Adam's.
    """
    _check_named(options)
    return baselines.baseline(config_with(config, options), method, watcher=watcher)


def _check_named(options: Mapping[str, object]) -> None:
    """Refuse data and models in memory where several runs, or none that has a folder, would need them."""
    for name in ("data", "model"):
        if not is_named(options.get(name)):
            raise InputError(
                f"{name} is given in memory, which only noback.train takes; here expected its file, folder or name"
            )


def _model(model: object, tokenizer: object, options: Mapping[str, object]) -> tuple[Opened | None, dict[str, Any]]:
    """A model in memory, and what a configuration says of it; of one that is named, its name."""
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        model, tokenizer = model
    if is_named(model):
        if tokenizer is not None:
            raise InputError("tokenizer goes with a loaded model; a model that is named brings its own: leave it out")
        return None, {} if model is None else {"model": model}
    opened = loaded_model(model, tokenizer)
    known = {"model": name_of(model), "dtype": dtype_of(model), "device": device_of(model)}
    for key in ("dtype", "device"):
        if options.get(key, known[key]) not in (known[key], None):
            raise InputError(
                f"{key} is {options[key]!r} and the loaded model's is {known[key]}; change the model first, with "
                f"model.to(...), or leave {key} out"
            )
    if options.get("quantise") is not None:
        raise InputError("quantise is for a model that is opened by its name; load the model quantised, or name it")
    return opened, known


def _ignore(_event: object) -> None:
    """No callback."""

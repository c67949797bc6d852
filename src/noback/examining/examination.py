"""The order of an examination: what the server says, then what it does; a line that stops the rest comes last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from noback.config import RunConfig
from noback.engines.options import LocalEngine
from noback.engines.outline import is_same_model
from noback.engines.servers.checking import Needs, canary, complaints
from noback.engines.servers.client import Background
from noback.engines.servers.finding import found_at
from noback.engines.servers.remote import Names
from noback.engines.servers.server import About, Server
from noback.errors import NobackError
from noback.examining.lines import Line, line_of
from noback.examining.scores import agreement
from noback.examining.slopes import slope_lines
from noback.examining.speed import shared_prefix, throughput
from noback.run import Run, drawn_data
from noback.watching import Watcher


class Found(NamedTuple):
    """The server that answers at an address, what it says of itself, and the thread of its requests."""

    server: Server
    about: About
    background: Background

    def close(self) -> None:
        """Give back what is open."""
        self.background.run(self.server.close())
        self.background.end()


def find(servers: Sequence[Server]) -> Found:
    """The server that answers at an address, which may be of several kinds."""
    background = Background()
    try:
        return Found(*background.run(found_at(servers)), background)
    except BaseException:
        background.end()
        raise


def examine(found: Found, config: RunConfig, watcher: Watcher, tell: Callable[[Line], None]) -> list[Line]:
    """Every line, told as it is found; `config` is the run that the server is to serve."""
    lines = []
    for line in _lines(found, config, watcher):
        lines.append(line)
        tell(line)
    return lines


def _lines(found: Found, config: RunConfig, watcher: Watcher) -> Iterator[Line]:
    server, about, background = found
    yield Line("server", True, f"{about.kind} {about.version} at {server.url} serves {about.model}", None,
               {"url": server.url, **about.recorded()})  # fmt: skip
    try:
        run = Run(config, watcher=watcher)
        run.task.use(drawn_data(config))
    except NobackError as error:
        yield Line("run", None, f"the run cannot be opened here, so only its server was asked: {error}")
        yield from _said(server, about, None)
        return
    engine: Any = config.engine
    needs = engine.copies(run.model, run.weights, config.adapter).needs()
    needs = needs._replace(slots=run.config.estimator.forwards)
    said = list(_said(server, about, needs))
    yield from said
    yield (same := _model(server, about, config))
    moved = _canary(found, needs) if same.passed is not False and all(line.passed for line in said) else None
    if moved is not None:
        yield moved
    if moved is None or not moved.passed:
        return
    local = _here(run, config, watcher)
    yield agreement(run, local, about)
    yield from slope_lines(run, local if isinstance(local, Run) else None, about, watcher)
    yield throughput(server, background, needs, run)
    yield shared_prefix(server, background, needs, run)


def _said(server: Server, about: About, needs: Needs | None) -> Iterator[Line]:
    """What the server says of itself beside what the run needs."""
    yield Line("dtype", True, f"it computes in {about.dtype or 'a type that it does not tell'}", None,
               {"dtype": about.dtype})  # fmt: skip
    if needs is None:
        needs = Needs(None, 0, frozenset(), 1, 0, (), ())  # type: ignore[arg-type]
    wrong = complaints(server, about, needs)
    lora = about.lora
    yield line_of(
        "version", wrong["version"], f"{about.version} is in the range that was tested", version=about.version
    )
    yield line_of("replicas", wrong["replicas"], "one, which takes adapters while it runs")
    yield line_of("adapters", wrong["adapters"], "they are on")
    if lora is None:
        return
    rank = f"up to {lora.rank}" if lora.rank else "not told; the canary will show"
    yield line_of("rank", wrong["rank"], f"{rank}, and the run's is {needs.rank}", limit=lora.rank, rank=needs.rank)
    yield line_of("targets", wrong["targets"], f"they hold {', '.join(sorted(needs.targets)) or 'any'}",
                  targets=sorted(needs.targets))  # fmt: skip
    few = lora.slots < needs.slots
    yield Line("slots", True, f"{lora.slots} for the {needs.slots} points of a step",
               f"fewer slots than points take longer: {server.slots_flag} {needs.slots}" if few else None,
               {"slots": lora.slots, "points": needs.slots})  # fmt: skip
    yield line_of("context", wrong["context"], f"{about.context or 'any number of'} tokens", context=about.context)


def _model(server: Server, about: About, config: RunConfig) -> Line:
    """Whether the run's base is the one that is served, where both are at hand."""
    same = is_same_model(config.model, about.model)
    if same is None:
        return Line("model", None, f"whether {about.model} is {config.model} cannot be told here; see agreement")
    if same:
        return Line("model", True, f"{about.model} is the run's base")
    to_do = f"name the model that it serves: --model {about.model}"
    return Line("model", False, f"{server.url} serves {about.model}, whose weights are others than those of "
                f"{config.model}", to_do)  # fmt: skip


def _canary(found: Found, needs: Needs) -> Line:
    """An adapter that must move the scores."""
    try:
        found.background.run(canary(found.server, needs, Names("check")()))
    except NobackError as error:
        return Line("canary", False, str(error))
    return Line("canary", True, f"an adapter of rank {needs.rank} was taken and moves the scores")


def _here(run: Run, config: RunConfig, watcher: Watcher) -> Run | str:
    """The same run with its model in this process, or why not."""
    size = sum(tensor.numel() for tensor in run.model.parameters())
    if size > 2e9:
        return f"the model has {size / 1e9:.1f} billion weights, too many to open here for a comparison"
    try:
        local = Run(replace(config, engine=LocalEngine()), watcher=watcher)
        local.task.use(drawn_data(config))
    except (NobackError, MemoryError) as error:
        return f"the model cannot be opened here: {error}"
    return local

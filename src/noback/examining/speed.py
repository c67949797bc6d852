"""How fast a server scores, with and without adapters in a batch, and whether it computes a shared prefix once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from noback.engines.servers.checking import Needs
from noback.engines.servers.client import Background
from noback.engines.servers.remote import Names, asks_of
from noback.engines.servers.server import Ask, Server
from noback.examining.lines import Line
from noback.run import Run

_MOST_ADAPTERS = 8  # of a timed batch
_PREFIX = 128  # tokens that prompts share
_FOLLOWERS = 4  # prompts that could have the prefix from the cache


def throughput(server: Server, background: Background, needs: Needs, run: Run) -> Line:
    """Prompts a second of the run's batch without adapters, and as many with the adapters of a step mixed."""
    adapters = min(run.config.estimator.forwards, _MOST_ADAPTERS)
    batch = [ask for _ in range(adapters) for ask in asks_of(run.batch(0), run.task.word_ids)]
    with published(server, background, needs, adapters) as names:
        mixed = [ask._replace(adapter=name) for ask, name in zip(batch, _spread(names, len(batch)), strict=True)]
        first, fresh = 5, 2 * len(batch)  # tokens with which prompts begin, so that none has its start from the cache
        rates = []
        for asks in (batch, mixed):
            background.run(server.score(_beginning(asks, first)))  # once before the clock: kernels are chosen
            began = time.perf_counter()
            background.run(server.score(_beginning(asks, first + len(batch))))
            rates.append(len(asks) / (time.perf_counter() - began))
            first += fresh
    alone, together = rates
    return Line(
        "throughput", True,
        f"{alone:,.0f} prompts a second without adapters, {together:,.0f} with {adapters} of them mixed "
        f"({together / alone:.2f} of it)",
        None, {"alone": alone, "mixed": together, "adapters": adapters, "prompts": len(batch)},
    )  # fmt: skip


def shared_prefix(server: Server, background: Background, needs: Needs, run: Run) -> Line:
    """Whether prompts of one adapter that begin alike are computed alike once."""
    tokens = next(asks_of(run.batch(0), run.task.word_ids)).prompt
    prefix = tuple(islice(cycle(tokens), _PREFIX))
    with published(server, background, needs, 1) as (name,):
        asks = [Ask((*prefix, last), name, words=needs.words) for last in range(5, 5 + _FOLLOWERS + 1)]
        background.run(server.score(asks[:1]))
        cached = sum(one.cached for one in background.run(server.score(asks[1:])))
    share = min(cached / (_FOLLOWERS * len(prefix)), 1.0)
    said = f"{share:.0%} of a prefix of {len(prefix)} tokens came from the cache for prompts of the same adapter"
    to_do = None if cached else f"start the server without {server.cache_off_flag}"
    return Line("prefix", cached > 0, said, to_do, {"share": share, "tokens": len(prefix)})


@contextmanager
def published(server: Server, background: Background, needs: Needs, count: int) -> Iterator[list[str]]:
    """Within, so many adapters are on the server."""
    fresh = Names("check")
    names = [fresh() for _ in range(count)]
    try:
        for name in names:
            background.run(server.publish(name, needs.copy))
        yield names
    finally:
        for name in names:
            background.run(server.retire(name))


def _spread(names: Sequence[str], count: int) -> list[str]:
    """Each name for as many in a row."""
    return [names[index * len(names) // count] for index in range(count)]


def _beginning(asks: Sequence[Ask], first: int) -> list[Ask]:
    """The same asks, each prompt beginning with a token of its own."""
    return [ask._replace(prompt=(first + index, *ask.prompt[1:])) for index, ask in enumerate(asks)]

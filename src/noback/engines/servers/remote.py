"""The engine whose model lives in inference servers: each point becomes an adapter there, and scores come back.

The tuned adapter lives here in float32. A step publishes its points under names that were never used before, sends the
prompts once under all of them, and retires them. Log-probabilities serve as label logits: they differ from logits by a
constant of each example, which no comparison of an example's labels sees.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from noback.engines.by_group import as_one, group_by_group
from noback.engines.generation import Writing
from noback.engines.outline import is_same_model
from noback.engines.reuse.planning import Tally
from noback.engines.servers.checking import examined
from noback.engines.servers.client import Background
from noback.engines.servers.copies import Base, Copies
from noback.engines.servers.fleet import Fleet, Numbered, Part
from noback.engines.servers.server import MARK, About, Ask, Reply, Server
from noback.errors import InputError
from noback.tasks import Batch
from noback.values import UNPERTURBED, Move
from noback.weights import Weights


class Remote:
    """Scores all points of a step in one request, or a request for each micro-batch, on one or several servers."""

    runs_ahead = False  # each step waits for the servers

    def __init__(  # noqa: PLR0913 (options by name)
        self,
        servers: Sequence[Server],
        weights: Weights,
        word_ids: Sequence[int] | None,
        copies: Copies,
        *,
        model: str,
        mark: str,
        micro_batch: int | None = None,
        wait: float = 600.0,
        say: Callable[[str], None] = lambda _: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`copies` gives the adapter at a point.

        `word_ids` none: a batch's candidates are read. `model`: what the run calls the base. `mark`: of the run, in the
        names of its adapters. `wait`: seconds that all servers may be away. `meanwhile` is called while they work.
        """
        self._weights, self._words, self._copies = weights, word_ids, copies
        self._micro_batch, self._meanwhile, self._servers = micro_batch, meanwhile, len(servers)
        self._names = Names(mark)
        self._fleet = Fleet(servers, _examiner(model, copies, self._names), self._names, wait=wait, say=say)
        self._numbers = itertools.count()
        # The copy of the weights as they stood after some writes, beside a base.
        self._standing: tuple[tuple[int, int | None], Numbered] | None = None
        self._background: Background | None = None
        self._ending: Callable[[], object] | None = None
        self._abouts: list[About] = []
        self.tally = Tally()

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    def close(self) -> None:
        """Unload every adapter of this engine; where nobody calls this, it happens when the engine is forgotten."""
        if self._ending is not None:
            self._ending()

    def ready(self) -> dict[str, Any]:
        """What a journal's header says of the server; one that cannot do the work is refused."""
        self._begun()
        return self._abouts[0].recorded()

    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """`score` as one tensor [points, examples, labels]."""
        return torch.stack(self.score(batch, points))

    def group_logits(self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]) -> Tensor:
        """`score_groups` as one tensor [points, examples, labels]."""
        return as_one(self.score_groups(batch, groups, points))

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each."""
        background = self._begun()
        base = self._copies.base(points, self._limit)
        copies = [self._copy(point, base) for point in points]
        size = self._micro_batch or math.ceil(len(batch) / (1 if self._servers == 1 else 2 * self._servers))
        batches = [batch.part(slice(first, first + size)) for first in range(0, len(batch), size)]
        parts = [self._part(some, copies) for some in batches]
        asked = background.start(self._fleet.score([part for part, _ in parts], copies, base))
        try:
            self._meanwhile()
            replies = asked.result()
        except BaseException:
            asked.cancel()
            raise
        background.run(self._fleet.retire([one.number for one in copies if not self._stands(one)]))
        self._count([one for some in replies for one in some])
        cut = [
            label_scores(_in_order(some, order), one, len(points))
            for one, some, (_, order) in zip(batches, replies, parts, strict=True)
        ]
        return [torch.cat(list(of_point)) for of_point in zip(*cut, strict=True)]

    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of examples at its own points: one group after the other."""
        return group_by_group(self, batch, groups, points)

    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """Answers that are written are not asked of servers."""
        raise InputError(
            f"servers are asked for scores, and {len(prompts) * len(points)} answers of {writing.limit} tokens are "
            "to be written; use --engine local"
        )

    def _begun(self) -> Background:
        """The thread of the requests; the first time, the servers are examined."""
        if self._background is None:
            background = Background()
            try:
                self._abouts = background.run(self._fleet.begin(self._names.is_left_over))
            except BaseException:
                _end(background, self._fleet)
                raise
            self._background = background
            self._ending = weakref.finalize(self, _end, background, self._fleet)
        return self._background

    @property
    def _limit(self) -> int | None:
        """The largest rank that every server takes; None: they do not say."""
        told = [about.lora.rank for about in self._abouts if about.lora is not None and about.lora.rank is not None]
        return min(told, default=None)

    def _copy(self, point: Move, base: Base | None) -> Numbered:
        """The adapter at a point; that of the weights as they stand is kept as long as they do."""
        if point != UNPERTURBED:
            return Numbered(next(self._numbers), self._copies.copy(point))
        here = self._weights.writes, None if base is None else base.number
        if self._standing is None or self._standing[0] != here:
            if self._standing is not None and self._background is not None:
                self._background.run(self._fleet.retire([self._standing[1].number]))
            self._standing = here, Numbered(next(self._numbers), self._copies.copy(point))
        return self._standing[1]

    def _stands(self, copy: Numbered) -> bool:
        return self._standing is not None and self._standing[1].number == copy.number

    def _part(self, batch: Batch, copies: Sequence[Numbered]) -> tuple[Part, list[int]]:
        """The asks of a batch under all copies, prompts with the same beginning side by side, and their places."""
        asks = [(ask, copy.number) for copy in copies for ask in asks_of(batch, self._words)]
        order = sorted(range(len(asks)), key=lambda index: (asks[index][1], asks[index][0].prompt))
        return Part([asks[index][0] for index in order], [asks[index][1] for index in order]), order

    def _count(self, replies: Sequence[Reply]) -> None:
        tokens, cached = sum(one.tokens for one in replies), sum(one.cached for one in replies)
        self.tally = replace(self.tally, tokens=self.tally.tokens + tokens, cached=self.tally.cached + cached)


def _examiner(model: str, copies: Copies, names: Names) -> Callable[[Server], Coroutine[Any, Any, About]]:
    """What examines a server; it holds no engine, so that one that is used no more is seen to be."""

    async def examine(server: Server) -> About:
        about = await server.about()  # before the canary: it fits this model alone
        if is_same_model(model, about.model) is False:
            raise InputError(
                f"server {server.url} serves {about.model!r}, whose weights are others than those of model {model!r}; "
                f"name the one that it serves: --model {about.model}"
            )
        return await examined(server, copies.needs(), names())

    return examine


class Names:
    """Names for adapters: none is used twice, and a later process knows whose they were."""

    def __init__(self, mark: str) -> None:
        """`mark`: of the run, the same in each of its processes."""
        self._run = f"{MARK}{mark}-"
        self._host = hashlib.blake2b(socket.gethostname().encode(), digest_size=3).hexdigest()
        self._process = f"{self._host}-{os.getpid()}-"
        self._before, self._numbers = f"{self._run}{self._process}{secrets.token_hex(3)}-", itertools.count()

    def __call__(self) -> str:
        """The next name."""
        return f"{self._before}{next(self._numbers)}"

    def is_left_over(self, name: str) -> bool:
        """Whether a process that has ended left an adapter: one of this run, or one of this machine."""
        parts = name.split("-")
        if len(parts) != 6 or parts[0] != "noback" or name.startswith(self._before):
            return False
        here = parts[2] == self._host
        return not _is_alive(parts[3]) if here else name.startswith(self._run)


def asks_of(batch: Batch, words: Sequence[int] | None) -> Iterator[Ask]:
    """What is asked of each row: the label words' log-probabilities, or those of its candidate's tokens."""
    rows = batch.inputs["input_ids"].tolist()
    if batch.candidates is None:
        if words is None:
            raise InputError("an inference server reads label words or continuations, and the task has neither")
        for row, last in zip(rows, batch.mask_positions.tolist(), strict=True):
            yield Ask(tuple(row[: last + 1]), None, words=tuple(words))
        return
    places = batch.mask_positions[:, 0].tolist()
    for row, first, target in zip(rows, places, batch.candidates.targets.tolist(), strict=True):
        yield Ask(tuple(row[: first + 1]), None, continuation=tuple(token for token in target if token >= 0))


def _in_order(replies: Sequence[Reply], order: Sequence[int]) -> list[Reply]:
    found: list[Reply] = list(replies)
    for place, reply in zip(order, replies, strict=True):
        found[place] = reply
    return found


def label_scores(replies: Sequence[Reply], batch: Batch, points: int) -> list[Tensor]:
    """The label logits at each point, float32 [examples, labels], from the replies of each point's rows."""
    from noback.engines.readout import by_example

    rows = len(replies) // points
    found = []
    for point in range(points):
        of_point = replies[point * rows : (point + 1) * rows]
        if batch.candidates is None:
            found.append(torch.tensor([list(one.log_probabilities) for one in of_point], dtype=torch.float32))
            continue
        means = [sum(one.log_probabilities) / len(one.log_probabilities) for one in of_point]
        found.append(by_example(torch.tensor(means, dtype=torch.float32)[:, None], batch.candidates))
    return found


def _end(background: Background, fleet: Fleet) -> None:
    """Leave nothing on the servers; where they are away, nothing of ours is there.

    Memory may be looked through in the thread of the requests, which cannot wait for itself.
    """
    if background.is_current():
        threading.Thread(target=_end, args=(background, fleet), name="noback end").start()
        return
    with suppress(Exception):
        background.start(fleet.end()).result(timeout=600 if fleet.has_sent else 10)
    background.end()


def _is_alive(number: str) -> bool:
    """Whether a process of this machine runs."""
    if not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

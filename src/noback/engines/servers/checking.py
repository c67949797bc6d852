"""Whether a server can do a run's work: what it says of itself, and a canary adapter that must move its scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.directions import drawn
from noback.engines.servers.server import MARK, About, Ask, Copy, Server
from noback.errors import InputError

Named = Callable[[dict[str, Tensor]], tuple[dict[str, Any], dict[str, Tensor]]]
MOVED = 1e-3  # least change of a log-probability by the canary, which changes it by far more where adapters count


CANARY = 0.1  # standard deviation of its B: an answer changes by far more than by rounding
_CANARY_TOKENS = (3, 4, 5, 6, 7, 8, 9, 10)  # that any vocabulary has


class Needs(NamedTuple):
    """What a run asks of a server."""

    copy: Copy  # an adapter of the run's form that changes what the model answers: the canary
    rank: int
    targets: frozenset[str]  # the last names of the linears that have A and B
    slots: int  # adapters of a step
    tokens: int  # the longest prompt
    prompt: tuple[int, ...]  # for the canary
    words: tuple[int, ...]
    sends_base: bool = False  # whether the model's own linears are sent to it


def needs_of(tensors: Mapping[str, Tensor], published: Named) -> Needs:
    """What a run with these tuned tensors asks of a server; `published` gives an adapter as servers take it."""
    strong = {
        name: tensor if ".lora_A." in name
        else torch.from_numpy(drawn(tuple(tensor.shape), name, "canary", CANARY)).to(tensor.dtype)
        for name, tensor in tensors.items()
    }  # fmt: skip
    copy = Copy(*published(strong))
    return needs_with(copy, int(copy.config["r"]))


def needs_with(canary: Copy, rank: int) -> Needs:
    """What a run asks of a server whose adapters have the canary's linears and this rank."""
    targets = frozenset(name.partition(".lora_")[0].rpartition(".")[2] for name in canary.tensors)
    return Needs(canary, rank, targets, 2, len(_CANARY_TOKENS), _CANARY_TOKENS, (11, 12, 13))


async def examined(server: Server, needs: Needs, name: str) -> About:
    """What the server says of itself, once it is known that it can do the work; `name` is the canary's."""
    about = await server.about()
    check(server, about, needs)
    await canary(server, needs, name)
    return about


def check(server: Server, about: About, needs: Needs) -> None:
    """Refuse a server by what it says of itself, with the flag that would change it."""
    for complaint in complaints(server, about, needs).values():
        if complaint is not None:
            raise InputError(complaint)


def complaints(server: Server, about: About, needs: Needs) -> dict[str, str | None]:
    """What is wrong with a server by what it says of itself, and the flag that would change it; None: nothing."""
    return {
        "version": _version(server, about),
        "replicas": _replicas(server, about),
        "weights": _weights(server, about, needs),
        "adapters": None if about.lora else f"server {server.url} takes no adapters; start it with {server.lora_flag}",
        "rank": _rank(server, about, needs),
        "targets": _targets(server, about, needs),
        "context": _context(server, about, needs),
    }


def _version(server: Server, about: About) -> str | None:
    first, below = server.tested
    if _number(first) <= _number(about.version) < _number(below):
        return None
    return (
        f"server {server.url} is {about.kind} {about.version}; noback was tested with {first} to below {below}, "
        "and other versions may answer with wrong numbers: use one of those"
    )


def _replicas(server: Server, about: About) -> str | None:
    if about.replicas <= 1:
        return None
    return (
        f"server {server.url} runs {about.replicas} data-parallel replicas, which take no adapters while they run; "
        "start several servers of one each and name them all: --url A,B"
    )


def _weights(server: Server, about: About, needs: Needs) -> str | None:
    if needs.sends_base or not about.weights.startswith(MARK):
        return None
    return (
        f"server {server.url} holds the weights of a run that tuned its model and was killed ({about.weights}), not "
        "those of its files; start it again, or let that run go on and end: noback resume"
    )


def _rank(server: Server, about: About, needs: Needs) -> str | None:
    rank = about.lora.rank if about.lora else None
    if rank is None or rank >= needs.rank:
        return None
    return (
        f"server {server.url} takes adapters up to rank {rank} and the run's has rank {needs.rank}; start it with "
        f"{server.rank_flag} {needs.rank}, or lower {'--set noise.rank' if needs.sends_base else '--set adapter.rank'}"
    )


def _targets(server: Server, about: About, needs: Needs) -> str | None:
    targets = about.lora.targets if about.lora else None
    missing = sorted(needs.targets - targets) if targets is not None else []
    if not missing:
        return None
    return (
        f"server {server.url} takes no adapters of {', '.join(missing)}; start it with {server.targets_flag} "
        f"{' '.join(sorted(needs.targets))}, or name fewer: --set adapter.targets=..."
    )


def _context(server: Server, about: About, needs: Needs) -> str | None:
    if about.context is None or about.context >= needs.tokens:
        return None
    return (
        f"server {server.url} takes prompts of {about.context} tokens and the run's have up to {needs.tokens}; "
        "start it with a longer context, or lower max_length of the task"
    )


async def canary(server: Server, needs: Needs, name: str) -> None:
    """Refuse a server whose scores a strong adapter does not change: it answers with the base model's."""
    await server.publish(name, needs.copy)
    try:
        base, moved = await server.score(
            [Ask(needs.prompt, None, words=needs.words), Ask(needs.prompt, name, words=needs.words)]
        )
    finally:
        await server.retire(name)
    changes = _changes(base.log_probabilities, moved.log_probabilities)
    if not all(map(math.isfinite, base.log_probabilities)):
        raise InputError(f"server {server.url} scores its base model with nan or infinity; look at its model and dtype")
    if not max(changes) > MOVED:
        raise InputError(
            f"server {server.url} gives an adapter's prompts the base model's scores (a canary adapter changed them by "
            f"{max(changes):.1g}), so no slope could be measured; start it with {server.lora_flag} and the targets of "
            "the run, and see that no proxy drops the adapter's name"
        )


def _changes(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other, strict=True)]


def _number(version: str) -> tuple[int, ...]:
    """A version as numbers: its release, without what follows it."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in found[0].split(".")] if found else [0]
    return tuple([*parts, 0, 0, 0][:3])

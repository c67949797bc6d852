"""A model's own linears tuned on a server: where directions are thin products, their displacement is an adapter.

The linears live here in float32 and move as in any run. A server has them as they stood some steps ago, its base. An
adapter at a point holds the products of every move since then and the point's own, so its rank grows by that of the
noise with each direction; where the server takes no larger one, it is sent the linears as they stand now.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from noback.directions import drawn
from noback.engines.servers.checking import CANARY, Needs, needs_with
from noback.engines.servers.copies import Base
from noback.engines.servers.server import Copy
from noback.errors import InputError
from noback.values import Move, Term
from noback.weights import Weights

_ENDING = ".weight"
# There is always an adapter: a server that lost it says so, and one that lost its base does not.
_NOTHING = Term(0, 0.0)


class ThinCopies:
    """The products of moves and points, as adapters beside linears that were sent."""

    def __init__(self, model: Any, weights: Weights) -> None:
        _check(model, weights)
        self._weights, self._rank = weights, weights.family.rank
        self._terms: list[Term] = []  # of the moves since the base
        self._base: Base | None = None  # None: to be made
        self._numbers = itertools.count()
        weights.watch(self._moved)

    def needs(self) -> Needs:
        """An adapter of the rank of one term, with which the linears are sent at each step; more fill later."""
        strong = {}
        for name, tensor in self._weights.tensors.items():
            rows, columns = tensor.shape
            strong[_name(name, "A")] = torch.from_numpy(drawn((1, columns), name, "canary A", columns**-0.5))
            strong[_name(name, "B")] = torch.from_numpy(drawn((rows, 1), name, "canary B", CANARY))
        return needs_with(Copy(self._config(1), strong), self._rank)._replace(sends_base=True)

    def base(self, points: Sequence[Move], limit: int | None) -> Base:
        """The linears as they stood when they were last sent, or as they stand, where the moves since are too many."""
        most = max((len(point.terms) for point in points), default=0)
        terms = len(self._terms) + max(most, 1)
        if self._base is None or (limit is not None and terms * self._rank > limit):
            now = {name: tensor.clone() for name, tensor in self._weights.tensors.items()}
            self._base, self._terms = Base(next(self._numbers), now), []
        return self._base

    def copy(self, point: Move) -> Copy:
        """The products of the moves since the base and of the point, side by side."""
        terms = (*self._terms, *point.terms) or (_NOTHING,)
        tensors = {}
        for name in self._weights.names:
            products = self._weights.products(name, [Move(terms)], None, None)
            assert products is not None
            tensors[_name(name, "A")] = products.of_columns[0].contiguous()
            tensors[_name(name, "B")] = products.of_rows[0].T.contiguous()
        return Copy(self._config(len(terms) * self._rank), tensors)

    def _moved(self, moves: Sequence[Move] | None) -> None:
        """Take note of moves; of what is no sum of products, only that the linears are others now."""
        if moves is None or any(move.decay != 1.0 or move.adaptive for move in moves):
            self._base = None
        elif self._base is not None:
            self._terms += [term for move in moves for term in move.terms if term.coefficient]

    def _config(self, rank: int) -> Mapping[str, Any]:
        targets = sorted({name.removesuffix(_ENDING).rpartition(".")[2] for name in self._weights.names})
        return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0,
                "target_modules": targets, "bias": "none"}  # fmt: skip


def _name(tensor: str, side: str) -> str:
    """What PEFT's files call a side of a linear's adapter."""
    return f"base_model.model.{tensor.removesuffix(_ENDING)}.lora_{side}.weight"


def _check(model: Any, weights: Weights) -> None:
    """Refuse tensors whose displacement is no adapter of a linear."""
    linears = {f"{name}{_ENDING}" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    others = [name for name in weights.names if name not in linears or weights.tensors[name].shape[1] == 1]
    if others:
        raise InputError(
            f"of the tuned tensors {len(others)} are no matrices of linears, which alone can be displaced on a server "
            f"({', '.join(others[:3])}...): they stay as they are with --set adapter.tune=linears"
        )

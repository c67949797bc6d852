"""Groups of examples, each at points of its own: one group after the other, or all in one forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from noback.engines.forward import Learned, ProbedModel, forward
from noback.engines.readout import by_example
from noback.engines.reuse.inputs import POSITIONS, TARGETS, Inputs
from noback.engines.reuse.last_layer import are_few
from noback.engines.runner import Runner
from noback.engines.trust import Trust, near, scores_tolerance
from noback.tasks import Batch
from noback.values import Move
from noback.weights import thin_tensors

Points = Sequence[Sequence[Move]]  # of each group
Slow = Callable[[Batch, Sequence[slice], Points], list[list[Tensor]]]
_FEW = 4  # groups on which ways are compared
_MOST = 2**26  # elements of tensors that are formed for every group and point: a quarter of a gigabyte


class _Scores(Protocol):
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]: ...


def group_by_group(engine: _Scores, batch: Batch, groups: Sequence[slice], points: Points) -> list[list[Tensor]]:
    """The label logits of each group's examples at that group's points: right for any engine, and slow."""
    return each_group(engine.score, batch, groups, points)


def each_group(
    score: Callable[[Batch, Sequence[Move]], list[Tensor]], batch: Batch, groups: Sequence[slice], points: Points
) -> list[list[Tensor]]:
    """The same by any function that scores a batch at some points."""
    return [score(batch.part(part), own) for part, own in zip(groups, points, strict=True)]


def on_the_cpu(found: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """What was found for each group at each of its points, fetched in one go: a GPU is waited for once."""
    flat = [one for of_group in found for one in of_group]
    if not flat[0].is_cuda:
        return [list(of_group) for of_group in found]
    fetched = iter(torch.split(torch.cat([one.reshape(-1) for one in flat]).cpu(), [one.numel() for one in flat]))
    return [[next(fetched).view(one.shape) for one in of_group] for of_group in found]


def as_one(found: Sequence[Sequence[Tensor]]) -> Tensor:
    """Label logits of each group at as many points as one tensor: [points, examples, labels]."""
    width = max(one.shape[1] for of_group in found for one in of_group)  # of candidates; -inf where there are fewer

    def padded(one: Tensor) -> Tensor:
        missing = width - one.shape[1]
        return torch.nn.functional.pad(one, (0, missing), value=float("-inf")) if missing else one

    return torch.stack([torch.cat([padded(one) for one in turn]) for turn in zip(*found, strict=True)])


class Together:
    """Scores all groups in one forward, a probe for each group and point, where that was seen to give the same."""

    def __init__(self, probed: ProbedModel, runner: Runner, trust: Trust) -> None:
        self._probed, self._runner, self._trust = probed, runner, trust
        self._said = f"{type(probed.model).__name__} does not take groups side by side; one after the other is slower"
        self._tolerance = scores_tolerance(probed.weights.tensors.values(), tf32=runner.tf32)
        self._learned: Learned | None = None
        thin = thin_tensors(probed.weights)
        self._formed = sum(part.numel() for name, part in probed.weights.tensors.items() if name not in thin)

    def __call__(self, batch: Batch, groups: Sequence[slice], points: Points, slow: Slow) -> list[list[Tensor]] | None:
        """The label logits of each group at its points; None where they have to be scored one after the other."""
        if not self._is_even(batch, groups, points):
            return None
        in_part = self._way(batch, groups, points, slow)
        if in_part is None:
            return None
        learned = self._learned
        cells = _point_by_point(points)

        def run(inputs: Inputs) -> Tensor:
            return forward(self._probed, inputs, cells, learned, groups=len(groups), in_part=in_part).logits

        logits = self._runner.run(("groups", len(groups), in_part), cells, self._runner.inputs(batch), run)
        return _by_group(logits, batch, groups, len(points[0]))

    def _is_even(self, batch: Batch, groups: Sequence[slice], points: Points) -> bool:
        """Whether every group has as many rows and points as any other, and what is formed for each fits."""
        rows = {batch.part(part).rows for part in groups} if batch.candidates else {p.stop - p.start for p in groups}
        rounds, count = {len(own) for own in points}, len(groups) * len(points[0])
        alike = len(rows) == len(rounds) == 1 and all(move.terms for own in points for move in own)
        return len(groups) > 1 and alike and count * self._formed <= _MOST

    def _way(self, batch: Batch, groups: Sequence[slice], points: Points, slow: Slow) -> bool | None:
        """Whether the last layer is computed in part; None: groups cannot be scored together."""
        few = self._few(batch, groups, len(points[0]))
        some, parts, own = batch.part(slice(0, groups[few - 1].stop)), groups[:few], points[:few]
        expected = cache(lambda: slow(some, parts, own))
        for in_part in (True, False) if self._is_read_in_part(self._runner.inputs(batch)) else (False,):
            kind = "groups", in_part, batch.candidates is not None
            said = "" if in_part else self._said

            def tried(in_part: bool = in_part) -> list[list[Tensor]]:
                inputs = self._runner.here(self._runner.inputs(some))
                found = forward(
                    self._probed, inputs, _point_by_point(own), self._learned, groups=few, in_part=in_part
                )  # fmt: skip
                if in_part and not found.cut:
                    raise ValueError("the last layer was computed whole")
                self._learned = found.learned
                return _by_group(found.logits, some, parts, len(own[0]))

            if self._trust.check(kind, tried, expected, self._agree, said):
                return in_part
        return None

    def _few(self, batch: Batch, groups: Sequence[slice], points: int) -> int:
        """Of how many groups ways are compared: the tokens must not be a multiple of their rows by chance."""
        tokens = self._runner.inputs(batch)["input_ids"].shape[1]
        rows = batch.rows // len(groups)
        counts = range(min(2, len(groups)), min(_FEW, len(groups)) + 1)
        return next((few for few in counts if tokens % (points * few * rows)), len(groups))

    def _is_read_in_part(self, inputs: Inputs) -> bool:
        some = TARGETS in inputs or self._probed.readout.of_some
        return self._probed.last is not None and some and are_few(inputs[POSITIONS], inputs["input_ids"].shape[1])

    def _agree(self, found: list[list[Tensor]], expected: list[list[Tensor]]) -> bool:
        if self._learned is None or self._learned.outside:
            return False
        pairs = zip(*(map(self._parts, chain(*scores)) for scores in (found, expected)), strict=True)
        alike = (zip(*pair, strict=True) for pair in pairs)
        return all(near(one.cpu(), other.cpu(), self._tolerance) for parts in alike for one, other in parts)

    def _parts(self, scores: Tensor) -> list[Tensor]:
        """Label logits and features apart: each is compared by its own size."""
        labels = self._probed.readout.labels
        return [scores[:, :labels], scores[:, labels:]] if self._probed.features else [scores]


def _point_by_point(points: Points) -> list[Move]:
    """The first point of each group, then the second of each, and so on."""
    return [move for turn in zip(*points, strict=True) for move in turn]


def _by_group(logits: Tensor, batch: Batch, groups: Sequence[slice], points: int) -> list[list[Tensor]]:
    """Logits [points x rows, ...] as those of each group at each point: [examples, labels]."""
    each = [by_example(one, batch.candidates) for one in logits.chunk(points)]
    first = groups[0].start
    return [[one[part.start - first : part.stop - first] for one in each] for part in groups]

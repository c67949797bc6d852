"""The contenders: each is made for a subject, then called once a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

from noback.bench.case import BenchCase
from noback.bench.measuring import Step
from noback.bench.reference import ReferenceStep
from noback.bench.subject import PlainForward, Subject
from noback.directions import seeds_of
from noback.engines import Local
from noback.estimators import Asked, estimate_groups
from noback.grouping import groups_of
from noback.measuring import OnItsWay, Slopes, advance, begin_groups_on, begin_on
from noback.objectives import CrossEntropy, cross_entropy
from noback.rules import move_of
from noback.values import Estimate
from noback.weights import Weights

Tuned = Mapping[str, Tensor]
EPS, LR = 1e-3, 1e-7  # a random model is to stay as it is; neither changes what a step costs


# Two plain forwards, in the ways that they can be run


def eager(subject: Subject) -> Step:
    """One after the other, as PyTorch runs a model."""
    return _twice(_inference(PlainForward(subject)))


def eager_together(subject: Subject) -> Step:
    """Both as one forward of a batch twice as large."""
    return _inference(PlainForward(subject, times=2))


def graphed(subject: Subject) -> Step:
    """A CUDA graph, replayed twice."""
    return _twice(_Captured(_inference(PlainForward(subject))))


def graphed_together(subject: Subject) -> Step:
    """A CUDA graph of one forward of a batch twice as large."""
    return _Captured(_inference(PlainForward(subject, times=2)))


def compiled(subject: Subject) -> Step:
    """Compiled by torch.compile, then captured in a CUDA graph, replayed twice."""
    return _twice(_Captured(_inference(PlainForward(subject, compiled=True))))


_EVERYWHERE: dict[str, Callable[[Subject], Step]] = {"eager": eager, "eager, one batch": eager_together}
_ON_CUDA = {"CUDA graph": graphed, "CUDA graph, one batch": graphed_together, "compiled": compiled}


def ways(device: torch.device) -> dict[str, Callable[[Subject], Step]]:
    """How two plain forwards can be run on a device; the first is plain inference of one batch at a time."""
    return {**_EVERYWHERE, **(_ON_CUDA if device.type == "cuda" else {})}


# Steps that train


class NobackStep:
    """A step of noback: score the batch at the estimator's points in one forward, then move the weights.

    On a CUDA device the loss is read when the next step is on its way, as training does.
    """

    def __init__(self, subject: Subject, tuned: Tuned, case: BenchCase) -> None:
        self._estimator = replace(case.estimator, eps=case.estimator.eps or EPS)
        self._rule = replace(case.rule, lr=case.rule.lr or LR)
        self._weights = Weights(tuned, case.noise or self._estimator.usual_noise)
        self._said: list[str] = []
        model = subject.model
        self._engine = Local(model, self._weights, subject.words, tf32=subject.tf32, say=self._said.append)
        self._batch, self._steps, self._directions = subject.batch, count(), case.directions
        self._groups = groups_of(len(subject.batch), case.directions_per)
        self._on_its_way: OnItsWay | None = None  # a step whose loss was not read yet
        self._estimates: list[Estimate] = []  # newest first, as many as the rule asks for
        self._slopes: list[Slopes] = []  # the same where the weights are

    def __call__(self) -> float:
        """One step; its slope, or on a CUDA device that of the step before."""
        step = next(self._steps)
        seeds = seeds_of(self._weights.family, 0, step, self._directions)
        if self._engine.runs_ahead and self._estimator.fixed_points and self._rule.runs_ahead:
            return self._ahead(step, self._begin(seeds))
        found = self._measured(seeds)
        self._estimates = [found, *self._estimates][: self._rule.memory + 1]
        self._weights.advance([move_of(self._rule, step, step + 1, self._estimates)])
        return found.slopes[0]

    def _begin(self, seeds: tuple[int, ...]) -> OnItsWay:
        engine, batch, estimator, objective = self._engine, self._batch, self._estimator, CrossEntropy()
        if len(self._groups) > 1:
            return begin_groups_on(engine, batch, self._groups, objective, estimator, seeds)
        return begin_on(engine, batch, objective, estimator, seeds)

    def _measured(self, seeds: tuple[int, ...]) -> Estimate:
        engine, batch, groups = self._engine, self._batch, self._groups

        def losses(outputs: Sequence[Tensor], part: slice) -> list[float]:
            return [cross_entropy(output, batch.gold[part]) for output in outputs]

        def score(asked: Asked) -> dict[int, list[float]]:
            if len(groups) == 1:
                return {0: losses(engine.score(batch, asked[0]), groups[0])}
            found = engine.score_groups(batch, [groups[group] for group in asked], list(asked.values()))
            return {group: losses(some, groups[group]) for group, some in zip(asked, found, strict=True)}

        return estimate_groups(self._estimator, seeds, [part.stop - part.start for part in groups], score)

    def _ahead(self, step: int, found: OnItsWay) -> float:
        self._slopes = [(found.seeds, found.slopes), *self._slopes][: self._rule.memory + 1]
        advance(self._weights, self._rule, step, step + 1, self._slopes)
        before, self._on_its_way = self._on_its_way or found, found
        return before.read()[0].slopes[0]

    @property
    def note(self) -> str | None:
        """What a reader of the figures must know."""
        alone = ["scores this model point by point, since its probes do not go side by side"]
        said = [*self._said, *(alone if self._engine.point_by_point else [])]
        return f"noback: {'; '.join(said)}" if said else None


def reference(subject: Subject, tuned: Tuned, _case: BenchCase) -> Step:
    """The reference MeZO; its head gives the whole vocabulary at one position, as its code does."""
    gold, seeds = subject.batch.gold.to(subject.device), count()
    step = ReferenceStep(list(tuned.items()), PlainForward(subject, every_word=True), gold, eps=EPS, lr=LR)
    return lambda: step(next(seeds))


def adam(subject: Subject, tuned: Tuned, _case: BenchCase) -> Step:
    """Back-propagation and Adam, fused, without dropout: the cheapest form that PyTorch has."""
    gold, forward = subject.batch.gold.to(subject.device), PlainForward(subject)
    for tensor in subject.model.parameters():
        tensor.requires_grad_(requires_grad=False)
    for tensor in tuned.values():
        tensor.requires_grad_()
    optimizer = torch.optim.Adam(list(tuned.values()), lr=LR, fused=True)

    def step() -> float:
        loss = F.cross_entropy(forward(), gold)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _inference(forward: PlainForward) -> Step:
    return torch.inference_mode()(forward)


def _twice(step: Step) -> Step:
    return lambda: (step(), step())


class _Captured:
    """A step as a CUDA graph, after a warm-up on a stream of its own, as PyTorch asks."""

    def __init__(self, step: Step) -> None:
        self._step = step  # holds the tensors that the graph reads
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._answer = step()

    def __call__(self) -> object:
        """Run the graph; its answer stands where it stood at the capture."""
        self._graph.replay()
        return self._answer

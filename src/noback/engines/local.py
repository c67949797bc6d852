"""The local engine: a Hugging Face model in this process, the points of a step batched into one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from noback.engines.by_group import Together, as_one, each_group, on_the_cpu
from noback.engines.forward import probed_model
from noback.engines.generation import Writing
from noback.engines.options import SHARED
from noback.engines.perturbed import Perturbed, TensorNames, materialised
from noback.engines.reuse.planning import Planner, Tally
from noback.engines.runner import Runner
from noback.engines.scoring import Scorer
from noback.engines.trust import Trust
from noback.errors import InputError
from noback.options import one_of
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

T = TypeVar("T")


class Local:
    """Scores all points of a step in one forward, or `probes_per_pass` of them at a time."""

    def __init__(  # noqa: PLR0913 (options by name)
        self,
        model: Any,
        weights: Weights,
        word_ids: Sequence[int] | None,
        *,
        probes_per_pass: int | None = None,
        micro_batch: int | None = None,
        tf32: bool = False,
        hold: bool = True,
        share: str = "all",
        features: bool = False,
        say: Callable[[str], None] = lambda _: None,
        meanwhile: Callable[[], None] = lambda: None,
        divided: bool = False,
    ) -> None:
        """`word_ids` none: a head or a batch's candidates are read. `micro_batch` bounds the examples of a forward.

        `tf32` lets a GPU round the factors of float32 products; `hold` lets a point's tensors be formed once for a
        whole text; `share` names what a causal model computes once on a CPU (`options.SHARED`); `say` is told what
        the engine had to change; `meanwhile` is called while a GPU works. `divided`: other ranks hold other parts of
        the model and compute the same forwards: none is captured, and none is made smaller on one rank alone. With
        `features`, what the decoder is given at the mask [examples, width] stands beside the label logits.
        """
        one_of("share", share, SHARED)
        self._model, self._weights, self._say, self._hold = model.eval(), weights, say, hold
        self._names = TensorNames(model.named_parameters(), weights)
        self._probes_per_pass, self._micro_batch = probes_per_pass, micro_batch
        self._divided = divided
        self.runner = runner_for(model, weights, tf32=tf32, meanwhile=meanwhile, captures=not divided)
        self._trust = Trust(say, self.runner.capturing)
        probed = probed_model(model, weights, word_ids, self._trust, self.runner.attention, features=features)
        planner = Planner(model, self._names, share if self.runner.shares else "none")
        self._scorer = Scorer(probed, self.runner, planner, self._trust, say)
        self._together = Together(probed, self.runner, self._trust)

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    def close(self) -> None:
        """Nothing to leave: the model is here."""

    def ready(self) -> dict[str, Any]:
        """Nothing: the model is here."""
        return {}

    @property
    def tally(self) -> Tally:
        """Tokens that were given and how many of them were not computed."""
        return self._scorer.tally

    @property
    def point_by_point(self) -> bool:
        """Whether the model was seen not to take points side by side."""
        return self._scorer.point_by_point

    @property
    def runs_ahead(self) -> bool:
        """Whether a GPU works while the host goes on."""
        return self.runner.asynchronous

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each, on the CPU."""
        return list(self.logits(batch, points).cpu())  # the one moment of a step that waits for a GPU

    @torch.inference_mode()
    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """The same as one tensor [points, examples, labels] where the model is; a GPU is not waited for."""
        while True:
            probes, examples = self._at_once(batch, points)
            try:
                with self.runner.within():
                    scores: list[Tensor] = []
                    for together in _cut(points, probes):
                        parts = [self._scorer(part, together) for part in _micro_batches(batch, examples)]
                        scores.extend(torch.cat(list(of_point)) for of_point in zip(*parts, strict=True))
                    logits = torch.stack(scores)
                    self.runner.after_a_score()
                    return logits
            except torch.OutOfMemoryError as error:
                self._take_less(probes, examples, error)

    @torch.inference_mode()
    def score_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        """The label logits of each group of examples at its own points: float32 [examples, labels], on the CPU."""
        return on_the_cpu(self._scored_groups(batch, groups, points))

    @torch.inference_mode()
    def group_logits(self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]) -> Tensor:
        """The same of as many points for each group, as one tensor [points, examples, labels] where the model is.

        A GPU is not waited for.
        """
        return as_one(self._scored_groups(batch, groups, points))

    def _scored_groups(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]]
    ) -> list[list[Tensor]]:
        while True:
            probes, examples = self._at_once(batch, points[0])
            try:
                with self.runner.within():
                    found = self._groups_at_once(batch, groups, points, probes, examples)
                    self.runner.after_a_score()
                    return found
            except torch.OutOfMemoryError as error:
                self._take_less(probes, examples, error)

    def _groups_at_once(
        self, batch: Batch, groups: Sequence[slice], points: Sequence[Sequence[Move]], probes: int, examples: int
    ) -> list[list[Tensor]]:
        """As many groups together as have so many examples, or one after the other; a smaller last one by itself."""
        scores: list[list[Tensor]] = []
        most = max(examples // max(part.stop - part.start for part in groups), 1)
        whole = len(groups) - (groups[-1].stop - groups[-1].start < groups[0].stop - groups[0].start)
        chunks = [*_cut(range(whole), most), *([range(whole, len(groups))] if whole < len(groups) else [])]
        for chunk in chunks:
            some, own = groups[chunk[0] : chunk[-1] + 1], points[chunk[0] : chunk[-1] + 1]
            first = some[0].start
            part = batch.part(slice(first, some[-1].stop))
            moved = [slice(one.start - first, one.stop - first) for one in some]
            slow = partial(each_group, lambda part, points: list(self.logits(part, points)))
            found = None if probes < len(own[0]) else self._together(part, moved, own, slow)
            scores += found or slow(part, moved, own)
        return scores

    @torch.inference_mode()
    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that the model writes after each prompt, at each point: one point after the other."""
        return [self._written(prompts, point, writing) for point in points]

    def _written(self, prompts: Sequence[Sequence[int]], point: Move, writing: Writing) -> list[list[int]]:
        while True:
            probes, examples = self._at_once(prompts, [point])
            try:
                with self.runner.within(), self._at(point, held=self._holds(prompts[:1], point, writing)):
                    parts = _cut(prompts, examples)
                    return [tokens for part in parts for tokens in writing.tokens(self._model, part)]
            except torch.OutOfMemoryError as error:
                self._take_less(probes, examples, error)

    def _holds(self, prompts: Sequence[Sequence[int]], point: Move, writing: Writing) -> bool:
        """Whether modules may hold the point's tensors: where they then write what every function at it writes."""

        def written(*, held: bool) -> list[list[int]]:
            with self._at(point, held=held):
                return writing.tokens(self._model, prompts)

        said = "the model uses tuned tensors in a way of its own; each token forms them anew, which is slower"
        return bool(self._hold and point.terms) and self._trust.check(
            "held", lambda: written(held=True), lambda: written(held=False), lambda one, other: one == other, said
        )

    def _at(self, point: Move, *, held: bool) -> AbstractContextManager[Any]:
        """Within, the model stands at a point."""
        if not point.terms:
            return nullcontext()
        if held:
            return materialised(self._model, self._weights, self._names, point)
        return Perturbed(self._weights, self._names, [point])

    def _at_once(self, batch: Sized, points: Sequence[Move]) -> tuple[int, int]:
        """How many points and examples may go through the model at once."""
        return min(self._probes_per_pass or len(points), len(points)), min(self._micro_batch or len(batch), len(batch))

    def _take_less(self, probes: int, examples: int, error: Exception) -> None:
        """Halve what goes through the model at once, remember it and say so; one example at one point must fit."""
        self.runner.forget()
        if self._divided:
            raise InputError(
                f"the GPU's memory does not hold {examples} examples at {probes} points, and the ranks of one model "
                "take the same at a time; give all of them --probes-per-pass or --micro-batch"
            ) from error
        if probes > 1:
            self._probes_per_pass = probes = probes // 2
        elif examples > 1:
            self._micro_batch = examples = examples // 2
        else:
            raise InputError(
                "the GPU's memory does not hold one example at one point; use a smaller dtype or model, or --device cpu"
            ) from error
        self._say(f"out of GPU memory; from now on {probes} points and {examples} examples at a time")


def runner_for(
    model: Any, weights: Weights, *, tf32: bool, meanwhile: Callable[[], None], captures: bool = True
) -> Runner:
    """The runner of the device that the weights are on: the only question about it."""
    if weights.device.type == "cpu":
        return Runner()
    from noback.engines.cuda.runner import gpu_runner

    return gpu_runner(model, weights, tf32=tf32, meanwhile=meanwhile, captures=captures)


def _cut(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    for rows in _cut(range(len(batch)), size):
        yield batch.part(slice(rows[0], rows[-1] + 1))

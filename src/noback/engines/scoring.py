"""Scoring one batch at a few points: which fast ways a model takes is found out on a few examples, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from torch import Tensor

from noback.engines.forward import Learned, ProbedModel, forward, forward_alone
from noback.engines.modules.probes import is_perturbed
from noback.engines.readout import by_example
from noback.engines.reuse.inputs import BACK, POSITIONS, TARGETS, Inputs
from noback.engines.reuse.last_layer import are_few
from noback.engines.reuse.planning import Plan, Planner, Tally
from noback.engines.runner import Runner
from noback.engines.trust import Trust, near, scores_tolerance
from noback.tasks import Batch
from noback.values import Move

_FEW = 8  # examples: a fast way is compared on less
_IN_PART = 0.25  # of the tolerance: the last layer in part differs by less than probes side by side do


class Way(NamedTuple):
    """How a batch is scored at several points at once."""

    plan: Plan | None = None  # what is computed once; none: nothing
    in_part: bool = False  # whether the last layer is computed where it is read only


class Scorer:
    """Scores batches at points, in the fastest way that was seen to give what the points give one by one."""

    def __init__(
        self, probed: ProbedModel, runner: Runner, planner: Planner, trust: Trust, say: Callable[[str], None]
    ) -> None:
        self._probed, self._runner, self._planner, self._trust, self._say = probed, runner, planner, trust, say
        self._name = type(probed.model).__name__
        self._tolerance = scores_tolerance(probed.weights.tensors.values(), tf32=runner.tf32)
        self._learned: Learned | None = None
        self.tally = Tally()  # tokens that were given and how many of them were not computed

    @property
    def point_by_point(self) -> bool:
        """Whether the model does not take points side by side."""
        return any(self._trust.refused(("points", several)) for several in (False, True))

    def __call__(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits at each point: float32 [examples, labels]."""
        way = self._way(batch, points)
        self.tally = self._planner.count(self.tally, batch, way.plan if way else None, len(points))
        if way is None:
            return self._alone(batch, points)
        plan, learned = way.plan, self._learned
        above = plan.above if plan is not None else ()

        def run(inputs: Inputs) -> Tensor:
            return forward(
                self._probed, inputs, points, learned, above=above, in_part=way.in_part,
                after_a_layer=self._runner.after_a_layer,
            ).logits  # fmt: skip

        kind = plan.kind if plan is not None else None, way.in_part
        logits = self._runner.run(kind, points, self._inputs(batch, plan), run)
        return [by_example(one, batch.candidates) for one in logits.chunk(len(points))]

    def _way(self, batch: Batch, points: Sequence[Move]) -> Way | None:
        """How to score a batch; none: point by point.

        What is compared for the first time is compared on a few examples; their scores are not used. So every score is
        computed in the way of all later ones, to the bit, also by a run that is resumed here.
        """
        moving, several = is_perturbed(points), len(points) > 1
        if moving and self._trust.refused(("points", several)):
            return None
        plan = self._planner.plan(batch, len(points))
        few = cache(lambda: self._few(batch, points, plan))
        plan_of_few = cache(lambda: None if plan is None else self._planner.plan(few(), len(points)))
        plain = cache(lambda: self._tried(few(), points, Way()))
        if moving and not self._takes_points(plain, lambda: self._alone(few(), points), several):
            return None
        whole = plain
        if plan is not None:
            whole = cache(lambda: self._tried(few(), points, Way(plan_of_few())))
            said = f"{self._name} does not share {plan}; it is scored the plain way"
            if not self._trust.check(("plan", plan.kind, moving), whole, plain, self._agree, said):
                plan, whole = None, plain
        inputs = self._inputs(batch, plan)
        if not self._is_read_in_part(inputs):
            return Way(plan)
        kind = "last layer", moving, plan is not None and bool(plan.above), TARGETS in inputs, BACK in inputs
        part = cache(lambda: self._tried(few(), points, Way(plan_of_few() if plan is not None else None, in_part=True)))
        said = f"the last layer of {self._name} is computed whole"
        return Way(plan, self._trust.check(kind, part, whole, self._agree_closely, said))

    def _takes_points(
        self, together: Callable[[], list[Tensor]], alone: Callable[[], list[Tensor]], several: bool
    ) -> bool:
        """Whether points side by side give what they give one by one.

        A model may hide the batch (tokens first, relative positions) or use a tuned tensor outside the module that
        owns it; its slopes would be wrong in silence.
        """

        def agree(found: list[Tensor], expected: list[Tensor]) -> bool:
            outside = self._learned is None or self._learned.outside
            return not outside and self._agree(found, expected)

        said = f"{self._name} does not take points side by side; they are scored one by one, which is slower"
        return self._trust.check(("points", several), together, alone, agree, said)

    def _few(self, batch: Batch, points: Sequence[Move], plan: Plan | None) -> Batch:
        """The examples on which ways are compared: two or a few more, for which the same is planned.

        A tensor whose first dimension is not points x rows, or a multiple, is refused by the handlers of modules; the
        tokens must not be such a number by chance.
        """
        tokens = self._runner.inputs(batch)["input_ids"].shape[1]
        for size in [*range(2, min(_FEW, len(batch))), len(batch), len(batch) - 1]:
            few = batch.part(slice(0, size))
            by_chance = size < 1 or tokens % (len(points) * few.rows) == 0
            if not by_chance and self._kind(few, self._planner.plan(few, len(points))) == self._kind(batch, plan):
                break
        else:
            few = batch
        if len(few) >= _FEW:
            self._say(f"{self._name} is checked on {len(few)} examples, once: fast ways against slow ones")
        return few

    def _kind(self, batch: Batch, plan: Plan | None) -> object:
        """What is planned for a batch, and whether few of its tokens are read."""
        return None if plan is None else plan.kind, self._is_read_in_part(self._inputs(batch, plan))

    def _tried(self, batch: Batch, points: Sequence[Move], way: Way) -> list[Tensor]:
        """The scores by one way, only to compare them; what a first forward learns is kept."""
        inputs = self._runner.here(self._inputs(batch, way.plan))
        above = way.plan.above if way.plan is not None else ()
        found = forward(self._probed, inputs, points, self._learned, above=above, in_part=way.in_part)
        if way.in_part and not found.cut:
            raise ValueError("the last layer was computed whole")
        self._learned = found.learned
        return [by_example(one, batch.candidates) for one in found.logits.chunk(len(points))]

    def _alone(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        inputs = self._runner.here(self._runner.inputs(batch))
        return [by_example(forward_alone(self._probed, inputs, point), batch.candidates) for point in points]

    def _inputs(self, batch: Batch, plan: Plan | None) -> dict[str, Tensor]:
        return self._runner.inputs(batch) if plan is None else plan.inputs

    def _is_read_in_part(self, inputs: Inputs) -> bool:
        """Whether few of the tokens that leave the last layer are read."""
        some = TARGETS in inputs or self._probed.readout.of_some
        return self._probed.last is not None and some and are_few(inputs[POSITIONS], inputs["input_ids"].shape[1])

    def _agree(self, found: Sequence[Tensor], expected: Sequence[Tensor], share: float = 1.0) -> bool:
        parts = (zip(*map(self._parts, pair), strict=True) for pair in zip(found, expected, strict=True))
        return all(near(one, other, share * self._tolerance) for pair in parts for one, other in pair)

    def _parts(self, scores: Tensor) -> Sequence[Tensor]:
        """Label logits and features apart: each is compared by its own size."""
        labels = self._probed.readout.labels
        return [scores[:, :labels], scores[:, labels:]] if self._probed.features else [scores]

    def _agree_closely(self, found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        return self._agree(found, expected, _IN_PART)

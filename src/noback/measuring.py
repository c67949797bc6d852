"""Measuring a step: its batch is scored at the estimator's points, and the losses become an estimate.

Where a run can be ahead of its journal (`Run.runs_ahead`), losses, slopes and move are worked out on the GPU, and the
host reads them when the next step is under way. What is recorded is what the GPU used, to the bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.answers import rewards_of, scored, scored_groups
from noback.directions import seeds_of
from noback.engines import Engine, check_numbers
from noback.estimators import Asked, Estimator, Found, estimate, estimate_groups, estimate_of, run_search, search_groups
from noback.evaluating import write
from noback.objectives import TEXTS, Objective
from noback.rules import Rule, coefficients_of, decay_at, lr_at
from noback.run import Run
from noback.tasks import Batch, Candidates, Question
from noback.values import Estimate, Move
from noback.weights import Weights

Slopes = tuple[Sequence[int], Tensor]  # a step's seeds, and its slopes where the weights are: float64 [directions]


@dataclass(frozen=True, slots=True)
class Measured:
    """A step's estimate, and for its health the slopes along each direction by either half of the batch.

    The halves are computed when they are asked for: the weights need not wait for them.
    """

    estimate: Estimate
    halves: Callable[[], Sequence[tuple[float, float]]]


def outputs(run: Run, step: int, points: Sequence[Move]) -> tuple[list[Tensor], Tensor]:
    """What the objective judges of a step's batch at each point, and its gold labels [examples].

    Label logits [examples, labels]; for a reward, what it gives for the texts that are written there [examples, 1].
    """
    if run.config.objective.judges != TEXTS:
        batch = run.batch(step)
        return scored(run.engine, batch, points), batch.gold
    questions = _questions(run, step)
    return _rewards(run, questions, points), torch.zeros(len(questions), dtype=torch.long)


def outputs_by_group(run: Run, step: int, asked: Asked) -> tuple[dict[int, list[Tensor]], Tensor]:
    """As `outputs`, of each group of the step's examples at its own points."""
    groups = run.groups
    parts = {group: groups[group] for group in asked}
    if run.config.objective.judges != TEXTS:
        batch = run.batch(step)
        found = scored_groups(run.engine, batch, list(parts.values()), list(asked.values()))
        return dict(zip(asked, found, strict=True)), batch.gold
    questions = _questions(run, step)
    rewards = {group: _rewards(run, questions[part], asked[group]) for group, part in parts.items()}
    return rewards, torch.zeros(len(questions), dtype=torch.long)


def _questions(run: Run, step: int) -> list[Question]:
    config = run.config
    return run.task.step_questions(step, config.batch, config.seed, balanced=config.balance is not None)


def _rewards(run: Run, questions: Sequence[Question], points: Sequence[Move]) -> list[Tensor]:
    """What the reward gives for the texts that are written at each point: [examples, 1] each."""
    written = write(run, [one.ids for one in questions], points)
    return [rewards_of(run.config.objective, questions, texts) for texts in written]


def readings(run: Run, step: int, points: Sequence[Move]) -> tuple[list[Tensor], Tensor]:
    """What the loss needs of a step's batch at each point [examples, numbers], and its gold labels [examples].

    It is all that the ranks of a run exchange of a step.
    """
    objective = run.config.objective
    if run.shared is None or objective.judges == TEXTS:
        found, gold = outputs(run, step, points)
        return [objective.reduced(output, gold) for output in found], gold
    batch = run.batch(step)
    return run.shared.exchanged(batch, points, objective.reduced), batch.gold


def measure(run: Run, step: int, eps: float) -> Measured:
    """Show the step's batch to the engine at the estimator's points."""
    estimator, seeds = _asked(run, step, eps)
    if run.runs_ahead:
        return _read(run, estimator, *_begin(run, step, estimator, seeds))
    if len(run.groups) > 1:
        return _measure_groups(run, step, estimator, seeds)
    rounds: list[list[Tensor]] = []
    gold = torch.empty(0)

    def score(points: list[Move]) -> list[float]:
        nonlocal gold
        found, gold = readings(run, step, points)
        rounds.append(found)
        return [run.loss_of(one, gold) for one in found]

    return _measured(run, estimator, estimate(estimator, seeds, score), rounds[0], gold)


def _measure_groups(run: Run, step: int, estimator: Estimator, seeds: tuple[int, ...]) -> Measured:
    """Each group of examples at its own points; their slopes are one record's."""
    parts, rounds = run.groups, list[dict[int, list[Tensor]]]()
    gold = torch.empty(0)

    def score(asked: Asked) -> dict[int, list[float]]:
        nonlocal gold
        answered, gold = outputs_by_group(run, step, asked)
        right, reduced = {group: gold[parts[group]] for group in answered}, run.config.objective.reduced
        found = {group: [reduced(one, right[group]) for one in some] for group, some in answered.items()}
        rounds.append(found)
        return {group: [run.loss_of(one, right[group]) for one in some] for group, some in found.items()}

    sizes = [part.stop - part.start for part in parts]
    found = estimate_groups(estimator, seeds, sizes, score)
    return _measured_groups(run, estimator, found, lambda group: rounds[0][group], gold)


def _measured_groups(
    run: Run, estimator: Estimator, found: Estimate, first: Callable[[int], Sequence[Tensor]], gold: Tensor
) -> Measured:
    """`first`: what the loss needs of a group at its points of the first round."""
    each, parts = estimator.directions, run.groups

    def halves() -> list[tuple[float, float]]:
        pairs = list[tuple[float, float]]()
        for group, part in enumerate(parts):
            if part.stop - part.start > 1:  # one example has no halves
                own = dataclasses.replace(found, seeds=found.seeds[group * each : (group + 1) * each])
                pairs += _measured(run, estimator, own, first(group), gold[part]).halves()
        return pairs

    return Measured(found, halves)


def take(run: Run, step: int, eps: float, earlier: Sequence[Slopes]) -> tuple[Slopes, Callable[[], Measured]]:
    """Measure a step and move the weights by it, where `runs_ahead`, without waiting for a GPU.

    `earlier` steps' slopes are for a rule with a memory, newest first. Returned: this step's slopes, for the next, and
    a function that waits for what was measured.
    """
    estimator, seeds = _asked(run, step, eps)
    found, gold = _begin(run, step, estimator, seeds)
    slopes = found.seeds, found.slopes
    advance(run.weights, run.config.rule, step, run.config.steps, [slopes, *earlier])
    return slopes, lambda: _read(run, estimator, found, gold)


class OnItsWay(NamedTuple):
    """What a step measured, on its way from a GPU to the host."""

    seeds: tuple[int, ...]
    slopes: Tensor  # float64 [directions] of float32 precision, where the weights are
    host: tuple[Tensor, ...]  # losses, slopes, figures and label logits, there once the event has come
    arrived: Any
    candidates: Candidates | None  # whose scores the label logits are

    def read(self) -> tuple[Estimate, list[Tensor]]:
        """The estimate and the label logits at each point; waits for them, and refuses those that are no numbers.

        A loss need not show them: that of a point is finite where a wrong candidate's score is -inf.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        losses, slopes, figures, logits = self.host
        check_numbers(logits, self.candidates)
        return estimate_of(self.seeds, losses.tolist(), slopes.tolist(), figures.tolist()), list(logits)


def _begin(run: Run, step: int, estimator: Estimator, seeds: tuple[int, ...]) -> tuple[OnItsWay, Tensor]:
    """Begin to measure a step, and its gold labels; nothing waits for a GPU."""
    batch, groups, objective = run.batch(step), run.groups, run.config.objective
    if len(groups) > 1:
        return begin_groups_on(run.engine, batch, groups, objective, estimator, seeds), batch.gold
    return begin_on(run.engine, batch, objective, estimator, seeds), batch.gold


def begin_on(engine: Engine, batch: Batch, objective: Any, estimator: Estimator, seeds: tuple[int, ...]) -> OnItsWay:
    """Begin to measure a batch with an engine and an objective that allow it."""
    scored: list[Tensor] = []

    def score(points: list[Move]) -> Tensor:
        logits = engine.logits(batch, points)
        scored.append(logits)
        losses: Tensor = objective.losses(logits, batch.gold.to(logits.device, non_blocking=True))
        return losses

    return _on_its_way(seeds, run_search(estimator, seeds, score), scored[0], batch)


def begin_groups_on(  # noqa: PLR0917 (those of `begin_on`, and the groups)
    engine: Engine, batch: Batch, groups: Sequence[slice], objective: Any, estimator: Estimator, seeds: tuple[int, ...]
) -> OnItsWay:
    """As `begin_on`, each group of the batch's examples at points of its own."""
    scored: list[Tensor] = []

    def score(points: list[list[Move]]) -> Tensor:
        logits = engine.group_logits(batch, groups, points)
        scored.append(logits)
        return _losses_of_groups(objective, logits, batch.gold.to(logits.device, non_blocking=True), groups)

    sizes = [part.stop - part.start for part in groups]
    return _on_its_way(seeds, search_groups(estimator, seeds, sizes, score), scored[0], batch)


def _losses_of_groups(objective: Any, logits: Tensor, gold: Tensor, groups: Sequence[slice]) -> Tensor:
    """The loss of each group at each of its points, [groups, points]; logits [points, examples, labels]."""
    size = groups[0].stop
    even = [part for part in groups if part.stop - part.start == size]
    end, shape = even[-1].stop, (len(even), size)
    of_even = torch.vmap(objective.losses, in_dims=(1, 0))(
        logits[:, :end].reshape(len(logits), *shape, -1), gold[:end].view(shape)
    )
    rest = [objective.losses(logits[:, part], gold[part])[None] for part in groups[len(even) :]]
    return torch.cat([of_even, *rest])


def _on_its_way(seeds: tuple[int, ...], found: Found, logits: Tensor, batch: Batch) -> OnItsWay:
    """What was found is brought to the host, without waiting for it."""
    slopes = found.slopes.float().double()
    numbers = (found.losses, slopes, found.figures, logits)
    if not slopes.is_cuda:
        return OnItsWay(seeds, slopes, numbers, None, batch.candidates)
    with torch.cuda.device(slopes.device):
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        way = OnItsWay(seeds, slopes, tuple(map(_fetched, numbers)), arrived, batch.candidates)
        way.arrived.record()
    return way


def advance(weights: Weights, rule: Rule, step: int, steps: int, slopes: Sequence[Slopes]) -> None:
    """Move the weights by slopes that are where the weights are, newest step first, whether or not they were read."""
    along = coefficients_of(rule, lr_at(rule, step, steps), [some for _, some in slopes])
    seeds = [seed for some, _ in slopes[: len(along)] for seed in some]
    weights.advance_along(seeds, along[0] if len(along) == 1 else torch.cat(along), decay_at(rule, step, steps))


def _asked(run: Run, step: int, eps: float) -> tuple[Estimator, tuple[int, ...]]:
    """A step's estimator and the seeds of its directions."""
    estimator = dataclasses.replace(run.config.estimator, eps=eps)
    return estimator, seeds_of(run.weights.family, run.config.seed, step, run.directions)


def _read(run: Run, estimator: Estimator, found: OnItsWay, gold: Tensor) -> Measured:
    (read, logits), reduced, parts = found.read(), run.config.objective.reduced, run.groups
    if len(parts) > 1:
        of_group = lambda group: [reduced(one[parts[group]], gold[parts[group]]) for one in logits]  # noqa: E731
        return _measured_groups(run, estimator, read, of_group, gold)
    return _measured(run, estimator, read, [reduced(one, gold) for one in logits], gold)


def _measured(run: Run, estimator: Estimator, found: Estimate, first: Sequence[Tensor], gold: Tensor) -> Measured:
    """`first`: what the loss needs at the points of the first round."""
    objective: Objective = run.config.objective
    if len(gold) < 2 or objective.costly or not estimator.fixed_points:
        return Measured(found, tuple)

    def slopes(part: slice) -> tuple[float, ...]:
        losses = [run.loss_of(one[part], gold[part]) for one in first]
        return estimate(estimator, found.seeds, lambda _: losses).slopes

    def halves() -> Sequence[tuple[float, float]]:
        return list(zip(slopes(slice(0, None, 2)), slopes(slice(1, None, 2)), strict=True))

    return Measured(found, halves)


def _fetched(tensor: Tensor) -> Tensor:
    """A copy on the host, there when the stream's next event is."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

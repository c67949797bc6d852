"""Groups of examples that have directions of their own: a search for each, side by side, and one record of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from noback.estimators.base import Array, Estimator, Found, Search
from noback.values import Estimate, Move, to_float32

Asked = Mapping[int, list[Move]]  # the points of each group that has a round to go


def estimate_groups(
    estimator: Estimator,
    seeds: Sequence[int],
    sizes: Sequence[int],
    score: Callable[[Asked], Mapping[int, list[float]]],
) -> Estimate:
    """Each group's search by itself, with its share of the seeds; the slopes stand group after group.

    `sizes`: the examples of each group; `score` gives each group's own losses at its points. Slopes are weighted by the
    size of their group, so that their mean is the whole batch's; the loss and the figures are means likewise.
    """
    each = estimator.directions
    searches: dict[int, Search] = {
        group: estimator.search(seeds[group * each : (group + 1) * each]) for group in range(len(sizes))
    }
    asked = {group: next(search) for group, search in searches.items()}
    first: dict[int, list[float]] = {}
    found: dict[int, tuple[Array, Array]] = {}
    with np.errstate(all="ignore"):  # a loss that is not finite is found by the caller
        while asked:
            losses = score(asked)
            first = first or dict(losses)
            asked = _next_round(searches, losses, found)
        shares = [size * len(sizes) / sum(sizes) for size in sizes]  # exactly 1 where all are of one size
        slopes = [share * slope for group, share in enumerate(shares) for slope in found[group][0].tolist()]
        means = [share * sum(first[group]) / len(first[group]) for group, share in enumerate(shares)]
        figures = sum(share * found[group][1] for group, share in enumerate(shares)) / len(sizes)
    return Estimate(
        to_float32(sum(means) / len(means)),
        tuple(seeds),
        tuple(map(to_float32, slopes)),
        tuple(map(to_float32, figures.tolist())),
    )


def search_groups(
    estimator: Estimator, seeds: Sequence[int], sizes: Sequence[int], score: Callable[[list[list[Move]]], Array]
) -> Found:
    """As `estimate_groups`, of an estimator of one round, by PyTorch where the losses are: for all groups at once.

    `score` gives the losses at each group's points, float64 [groups, points].
    """
    import torch

    each, groups = estimator.directions, len(sizes)
    losses = score([next(estimator.search(seeds[group * each : (group + 1) * each])) for group in range(groups)])

    def found(of_group: Array) -> tuple[Array, Array]:
        search = estimator.search(seeds[:each])  # what it makes of losses is the same for all seeds
        next(search)
        answers: dict[int, tuple[Array, Array]] = {}
        _next_round({0: search}, {0: of_group}, answers)
        return answers[0]

    slopes, figures = torch.vmap(found)(losses)
    means = losses.mean(dim=1)
    if len(set(sizes)) > 1:
        shares = torch.tensor([size * groups / sum(sizes) for size in sizes], dtype=torch.float64)
        shares = shares.to(losses.device, non_blocking=True)
        slopes, figures, means = slopes * shares[:, None], figures * shares[:, None], means * shares
    return Found(means, slopes.reshape(-1), figures.mean(dim=0))


def _next_round(
    searches: Mapping[int, Search], losses: Mapping[int, list[float] | Array], found: dict[int, tuple[Array, Array]]
) -> dict[int, list[Move]]:
    """Tell each search its losses: the points of those that go on; what the others found is put into `found`."""
    asked: dict[int, list[Move]] = {}
    for group, some in losses.items():
        told = np.array(some, dtype=np.float64) if isinstance(some, list) else some
        try:
            asked[group] = searches[group].send(told)
        except StopIteration as end:
            found[group] = end.value if isinstance(end.value, tuple) else (end.value, told[:0])
    return asked

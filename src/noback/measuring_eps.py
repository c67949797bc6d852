"""The effect of eps, measured without training: the same directions and examples at each eps, under each objective."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from noback.answers import fitted
from noback.comparing import objective_config, objective_title
from noback.config import RunConfig
from noback.directions import seeds_of
from noback.errors import InputError, Interrupted, NoNumbers
from noback.estimators import Estimator, estimate
from noback.files import write_whole
from noback.folder import next_folder
from noback.grouping import STEP
from noback.health import slope_figures
from noback.json_text import json_text
from noback.measuring import outputs
from noback.objectives import TEXTS
from noback.options import positive
from noback.run import Run, drawn_data, versions, with_whole_paths
from noback.values import UNPERTURBED, Move, Term
from noback.watching import Silent, Watcher

EPS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
MEASURED = ("cross_entropy", "accuracy")
FILE = "epsilon.json"
_TIES = 0.1  # a piecewise constant objective may have so many zero slopes
_AGREED = 0.95  # neighbours whose slopes agree by this measure the same thing


@dataclass(frozen=True, slots=True)
class Probe:
    """The losses of one batch along one direction at one eps."""

    plus: float
    still: float
    minus: float
    slope: float  # by the configuration's estimator, as loss per unit also where that normalises its slopes

    @property
    def curvature(self) -> float:
        """l+ - 2 l0 + l-: what a straight line does not have."""
        return self.plus - 2 * self.still + self.minus


def measure_eps(
    config: RunConfig,
    eps: Sequence[float] = EPS,
    objectives: Sequence[str] = MEASURED,
    *,
    directions: int = 32,
    out: str | os.PathLike[str] | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Slopes and curvature at each eps, saved in a folder; agreement is with the slopes at the configuration's eps.

    They are those of the label words as they are: a readout that no fit has moved changes none.
    """
    began, watcher, config = time.monotonic(), watcher or Silent(), with_whole_paths(config)
    config = dataclasses.replace(config, readout=None)
    reference = config.eps
    if not config.estimator.fixed_points:
        raise InputError(f"estimator {config.estimator.kind!r} chooses its points by losses; measure eps with another")
    if config.directions_per != STEP:
        raise InputError(
            f"directions_per is {config.directions_per!r}; slopes at each eps are measured for a whole batch: "
            "leave it out, eps is the same for all"
        )
    for value in eps:
        positive("eps", value)
    if len(set(eps)) < len(eps):
        raise InputError(f"eps {', '.join(f'{value:g}' for value in eps)} names one twice; expected each once")
    ladder = sorted({*eps, reference})
    folder = Path(out) if out is not None else next_folder(Path("runs"), f"{Path(config.task_name).stem}-epsilon")
    if folder.exists():
        raise InputError(f"folder {str(folder)!r} exists; choose another with --out")
    spec = config.spec()
    configs = [fitted(objective_config(config, name), spec) for name in objectives]
    if not configs or len({objective_title(one) for one in configs}) < len(configs):
        raise InputError("the objectives name one twice, or none; expected each once")
    for one in configs:
        one.objective.check()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    try:
        probes = _measured(configs, ladder, directions, watcher, stop)
        table = _table(config, configs, probes, time.monotonic() - began)
    except BaseException:
        folder.rmdir()  # nothing was kept
        raise
    write_whole(folder / FILE, json_text(table, indent=1))
    return {"folder": str(folder), **table}


def _table(
    config: RunConfig,
    configs: Sequence[RunConfig],
    probes: Mapping[str, dict[float, list[Probe]]],
    seconds: float,
) -> dict[str, Any]:
    reference = config.eps
    measured = next(iter(probes.values()))
    directions = len(measured[reference])
    rows = [row for one in configs for row in _rows(one, probes[objective_title(one)], reference)]
    recommendations = [
        {"objective": objective_title(one), **_recommended(one, probes[objective_title(one)])} for one in configs
    ]
    models = len({_read(one) for one in configs})
    forwards = models * (-(-directions // config.estimator.directions) + 2 * directions * len(measured))
    return {
        "kind": "epsilon",
        "task": config.task_name,
        "config": config.table(),
        "versions": versions(),
        "reference": reference,
        "directions": directions,
        "batch": config.batch,
        "forwards": forwards,
        "seconds": round(seconds, 3),
        "rows": rows,
        "recommendations": recommendations,
    }


def _measured(
    configs: Sequence[RunConfig], ladder: Sequence[float], directions: int, watcher: Watcher, stop: Callable[[], bool]
) -> dict[str, dict[float, list[Probe]]]:
    """Each objective's probes by eps; objectives that read the same logits share the forwards."""
    found: dict[str, dict[float, list[Probe]]] = {}
    for _, group in groupby(sorted(configs, key=_read), key=_read):
        together = list(group)
        drawn = drawn_data(together[0])
        run = Run(together[0], watcher=watcher)
        run.task.use(drawn)
        for one in together:
            found[objective_title(one)] = {eps: [] for eps in ladder}
        batches = -(-directions // together[0].estimator.directions)
        for number in range(batches):
            if stop():
                raise Interrupted("stopped; nothing was trained and nothing is kept")
            for eps, judged in _along(run, together, number, ladder):
                for one, probes in zip(together, judged, strict=True):
                    found[objective_title(one)][eps] += probes
            what = "the head" if together[0].adapter.head_seed is not None else "the label words"
            watcher.progress(f"measuring slopes of {what}", number + 1, batches)
    return found


def _read(config: RunConfig) -> str:
    """Names what a configuration's forwards read: a head or label words, all candidates or the right ones, or texts."""
    objective = config.objective
    return f"{config.adapter!r} {objective if objective.judges == TEXTS else objective.answer_only}"


def _along(
    run: Run, configs: Sequence[RunConfig], number: int, ladder: Sequence[float]
) -> Iterator[tuple[float, list[list[Probe]]]]:
    """The directions and the batch of step `number` at each eps: each objective's probes, one a direction.

    Either side of each direction is scored whatever the estimator asks, since curvature needs both.
    """
    seeds = seeds_of(run.weights.family, run.config.seed, number, run.config.estimator.directions)
    (still,), gold = outputs(run, number, [UNPERTURBED])
    for eps in ladder:
        estimator = dataclasses.replace(run.config.estimator, eps=eps)
        sides = [(Move((Term(seed, eps),)), Move((Term(seed, -eps),))) for seed in seeds]
        points = list(dict.fromkeys([*chain(*sides), *next(estimator.search(seeds))]))
        points = [point for point in points if point != UNPERTURBED]
        found = dict(zip(points, _outputs_at(run, number, points, eps), strict=True)) | {UNPERTURBED: still}
        judged = []
        for one in configs:
            losses = {point: one.objective.loss(output, gold, run.task.texts) for point, output in found.items()}
            judged.append(_probes(estimator, seeds, losses, sides))
        yield eps, judged


def _outputs_at(run: Run, number: int, points: Sequence[Move], eps: float) -> list[Tensor]:
    try:
        return outputs(run, number, points)[0]
    except NoNumbers as error:
        raise InputError(f"{error.found} at eps {eps:g}: it is too far from the weights; leave it out") from None


def _probes(
    estimator: Estimator, seeds: Sequence[int], losses: Mapping[Move, float], sides: Sequence[tuple[Move, Move]]
) -> list[Probe]:
    found, still = estimate(estimator, seeds, lambda points: [losses[point] for point in points]), losses[UNPERTURBED]
    slopes = [slope * estimator.unit(found.figures) for slope in found.slopes]
    return [
        Probe(losses[plus], still, losses[minus], slope) for (plus, minus), slope in zip(sides, slopes, strict=True)
    ]


def _rows(config: RunConfig, probes: dict[float, list[Probe]], reference: float) -> list[dict[str, Any]]:
    anchor = [probe.slope for probe in probes[reference]]
    rows = []
    for eps, measured in probes.items():
        slopes = [probe.slope for probe in measured]
        curvatures = [probe.curvature for probe in measured]
        figures = slope_figures(slopes)
        rows.append(
            {
                "objective": objective_title(config),
                "eps": eps,
                "nonzero_share": 1.0 - figures["zero_slope_share"],
                "mean_abs_slope": figures["mean_abs_slope"],
                "min_abs_slope": figures["min_abs_slope"],
                "max_abs_slope": figures["max_abs_slope"],
                "agreement": agreement(slopes, anchor),
                "same_sign": sum(a * b > 0 for a, b in zip(slopes, anchor, strict=True)) / len(slopes),
                "curvature": sum(curvatures) / len(curvatures),
                "mean_abs_curvature": sum(map(abs, curvatures)) / len(curvatures),
            }
        )
    return rows


def agreement(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The cosine between two lists of slopes along the same directions; None where one is all zeros."""
    size = math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
    return sum(a * b for a, b in zip(one, other, strict=True)) / size if size else None


def _recommended(config: RunConfig, probes: dict[float, list[Probe]]) -> dict[str, Any]:
    """The eps to use, and why."""
    straight = {eps: measured for eps, measured in probes.items() if _is_straight(measured)}
    return _for_smooth(straight, sorted(probes)) if config.objective.smooth else _for_piecewise_constant(straight)


def _is_straight(measured: Sequence[Probe]) -> bool:
    """Whether the losses differ between the sides more than they bend away from the middle."""
    apart = sum(abs(probe.plus - probe.minus) for probe in measured)
    return sum(abs(probe.curvature) for probe in measured) <= apart


def _for_smooth(straight: dict[float, list[Probe]], tried: Sequence[float]) -> dict[str, Any]:
    """The middle of the longest row of neighbours that agree: far from rounding below and from curvature above."""
    plateau: list[float] = []
    current: list[float] = []
    ladder = sorted(straight)
    for eps, after in pairwise(ladder):
        slopes = [[probe.slope for probe in straight[each]] for each in (eps, after)]
        shared = agreement(*slopes)
        current = [*(current or [eps]), after] if shared is not None and shared >= _AGREED else []
        plateau = max(plateau, current, key=len)
    if not plateau:
        return {"eps": None, "reason": "no two neighbouring eps measure the same slopes: try others in between"}
    return {
        "eps": plateau[len(plateau) // 2],
        "reason": f"from {plateau[0]:g} to {plateau[-1]:g} neighbours measure the same slopes (agreement of at least "
        f"{_AGREED}); {_beyond(plateau, tried)}",
    }


def _beyond(plateau: Sequence[float], tried: Sequence[float]) -> str:
    """What was seen below and above the eps that agree; nothing is said of eps that were not tried."""
    low, high = plateau[0], plateau[-1]
    rounding = f"below {low:g} they are lost to rounding" if low > tried[0] else ""
    curvature = f"above {high:g} they are lost to curvature" if high < tried[-1] else ""
    if rounding and curvature:
        return f"{rounding} and {curvature}, so stay inside"
    if rounding:
        return f"they agree up to the largest eps tried, and {rounding}"
    if curvature:
        return f"they agree down to the smallest eps tried, and {curvature}"
    return "they agree from the smallest eps tried to the largest"


def _for_piecewise_constant(straight: dict[float, list[Probe]]) -> dict[str, Any]:
    """The smallest eps at which few slopes are zero."""
    zeros = {
        eps: slope_figures([probe.slope for probe in straight[eps]])["zero_slope_share"] for eps in sorted(straight)
    }
    if not zeros or min(zeros.values()) == 1.0:
        return {"eps": None, "reason": "every slope is zero or lost in curvature: use cross-entropy or a larger batch"}
    few = [eps for eps, share in zeros.items() if share <= _TIES]
    eps = few[0] if few else min(zeros, key=lambda each: zeros[each])
    which = f"the smallest with at most {_TIES:.0%} zero slopes" if few else "the fewest zero slopes of those measured"
    return {"eps": eps, "reason": f"{which} ({zeros[eps]:.0%}), and not yet lost in curvature"}

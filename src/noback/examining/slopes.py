"""What a server's rounding does to slopes: their noise at the run's eps, and the eps to use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from noback.directions import seeds_of
from noback.engines.servers.server import About
from noback.examining.lines import Line
from noback.measuring import outputs
from noback.measuring_eps import agreement as cosine
from noback.run import Run
from noback.values import Move, Term
from noback.watching import Watcher

LADDER = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
_DIRECTIONS = 4
# Of eps: true slopes stay as they are. Less would not show a rounding so coarse that losses do not change at all.
_NUDGES = (0.7, 1.0, 1.4)
_NOISY = 0.25  # of a slope's size: more is noise than a step can use
_TRUE = 0.9  # agreement with the slopes at the quietest eps


class AtEps(NamedTuple):
    """Slopes along some directions at an eps, and how far they scatter where eps is changed a little."""

    eps: float
    slopes: list[float]
    noise: float  # relative to the slopes' size


def slope_lines(run: Run, local: Run | None, about: About, watcher: Watcher) -> Iterator[Line]:
    """The noise at the run's eps, the slopes beside the local engine's, and an eps to use."""
    chosen = run.config.eps
    ladder = sorted({*LADDER, chosen})
    found = []
    for index, eps in enumerate(ladder):
        found.append(_at(run, eps))
        watcher.progress("measuring slopes", index + 1, len(ladder))
    here = next(one for one in found if one.eps == chosen)
    best = recommended(found, chosen)
    figures = {"eps": chosen, "noise": here.noise, "slopes": here.slopes,
               "ladder": [one._asdict() for one in found]}  # fmt: skip
    said = f"at eps {chosen:g} the noise of a slope is {here.noise:.1%} of its size"
    yield Line("slopes", here.noise <= _NOISY, said, _advice(here, best, about), figures)
    if best is not None:
        yield Line("eps", True, f"recommended for {about.dtype}: {best.eps:g} (noise {best.noise:.1%})", None,
                   {"recommended": best.eps, "noise": best.noise})  # fmt: skip
    else:
        yield Line("eps", False, f"at no eps of {ladder[0]:g} to {ladder[-1]:g} are slopes more than noise",
                   "serve in a type that rounds finer: --dtype float16, or float32 where the server can",
                   {"recommended": None})  # fmt: skip
    if local is not None:
        ours = _at(local, chosen, nudges=(1.0,)).slopes
        off = math.dist(ours, here.slopes) / (math.hypot(*ours) or 1.0)
        said = f"slopes differ from the local engine's by {off:.2g} of their size"
        to_do = None if off <= _NOISY else "see the lines slopes and eps"
        yield Line("local", off <= _NOISY, said, to_do, {"difference": off})


def recommended(found: Sequence[AtEps], chosen: float) -> AtEps | None:
    """The run's own eps where it is quiet and measures what the quietest does, else the least such eps."""
    quiet = min(found, key=lambda one: one.noise)
    if quiet.noise > _NOISY:
        return None
    alike = [one for one in found if (cosine(one.slopes, quiet.slopes) or 0.0) >= _TRUE]
    good = [one for one in alike if one.noise <= max(2 * quiet.noise, 0.02)]
    return min(good, key=lambda one: (one.eps != chosen, one.eps))


def _at(run: Run, eps: float, nudges: Sequence[float] = _NUDGES) -> AtEps:
    seeds = seeds_of(run.weights.family, run.config.seed, 0, _DIRECTIONS)
    tried = [eps * nudge for nudge in nudges]
    rows = [_slopes(run, seeds, each) for each in tried]
    means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    off = [value - mean for row in rows for value, mean in zip(row, means, strict=True)]
    spread = math.hypot(*off) / math.sqrt(max(len(off) - len(means), 1))
    size = math.hypot(*means) / math.sqrt(len(means))
    return AtEps(eps, means, spread / size if size else math.inf)


def _slopes(run: Run, seeds: Sequence[int], eps: float) -> list[float]:
    points = [Move((Term(seed, side * eps),)) for seed in seeds for side in (1, -1)]
    found, gold = outputs(run, 0, points)
    losses = [run.loss(one, gold) for one in found]
    return [(plus - minus) / (2 * eps) for plus, minus in zip(losses[::2], losses[1::2], strict=True)]


def _advice(here: AtEps, best: AtEps | None, about: About) -> str | None:
    if here.noise <= _NOISY:
        return None
    if best is None:
        return f"serve in a type that rounds finer than {about.dtype}"
    return f"train with --eps {best.eps:g}, or serve in a type that rounds finer than {about.dtype} (--dtype)"

"""The search for a learning rate: a ladder of short trials, of which fewer and fewer go on for longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from noback.errors import InputError
from noback.ranks import agree_to_begin
from noback.run import Run, take_options
from noback.screening.choosing import Losses, chosen, edge_is_seen, highest, none_is_sound
from noback.screening.trials import Trial, Trials
from noback.usual import AUTO
from noback.watching import Watcher

_APART = 10**0.5  # a rate and the next one
_BELOW, _ABOVE = 2, 3  # rungs of the ladder on either side of the usual rate, to begin with
_FURTHER = 16  # rungs that it may grow by on one side: eight powers of ten
_FIRST, _FEWEST, _MOST = 15, 10, 40  # first trials take a fifteenth of the run's steps, within these bounds
_LONGER, _LEFT = (2, 5), (3, 2)  # times as many steps then, and how many rates go on to them


@dataclass(frozen=True, slots=True)
class Found:
    """What a screening found and took."""

    lr: float
    trials: tuple[Trial, ...]  # by their rates, ascending
    forwards: int  # of a batch
    seconds: float

    def sentence(self) -> str:
        """What was tried, for people."""
        tried = ", ".join(f"{one.lr:.2g}: {_shown(one)}" for one in self.trials)
        return (
            f"lr auto: {self.lr:.3g}, found with {self.forwards:,} forwards in {self.seconds:.0f} s; "
            f"held-out loss after so many steps with each rate: {tried}"
        )

    def line(self) -> dict[str, Any]:
        """The line of metrics: each trial's rate, its steps and its last loss, null where it was lost."""
        last = [one.last for one in self.trials]
        return {
            "kind": "screening", "lr": self.lr, "rates": [one.lr for one in self.trials],
            "lengths": [step for step, _ in last], "losses": [loss for _, loss in last],
            "forwards": self.forwards, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def screened(run: Run, stop: Callable[[], bool] = lambda: False) -> Found | None:
    """Find the learning rate of a run that leaves it to be found, and give it to the run; None: it has one.

    The weights are the base's before and after. `stop` is asked before each step of a trial.
    """
    if run.config.rule.lr != AUTO:
        return None
    began, watcher, config = time.monotonic(), run.watcher, run.config
    agree_to_begin(run)
    trials = Trials(run, stop)
    try:
        ladder = _Ladder(trials, watcher, config.usual_lr, config.steps)
        lr = ladder.climb()
    finally:
        trials.restore()
    take_options(run, config.with_lr(lr))
    found = Found(lr, ladder.rungs, trials.forwards, time.monotonic() - began)
    watcher.note(found.sentence())
    return found


class _Ladder:
    """Rates a factor apart, each with its trial; place 0 has the usual rate."""

    def __init__(self, trials: Trials, watcher: Watcher, usual: float, steps: int) -> None:
        self._trials, self._watcher, self._usual = trials, watcher, usual
        self._lengths = lengths_of(steps)
        self._rungs = dict[int, Trial]()

    @property
    def rungs(self) -> tuple[Trial, ...]:
        """The trials, by ascending rates."""
        return tuple(self._rungs[place] for place in sorted(self._rungs))

    def climb(self) -> float:
        """The rate that a run is to take."""
        length, base = self._lengths[0], self._trials.base
        places = range(-_BELOW, _ABOVE + 1)
        while not edge_is_seen(self._losses(places, length), base) and places.stop <= _ABOVE + _FURTHER:
            places = range(places.start, places.stop + 1)
        while none_is_sound(self._losses(places, length), base) and places.start > -_BELOW - _FURTHER:
            places = range(places.start - 1, places.stop)
        self._check(places, length)
        top = places[highest(self._losses(places, length))]
        for length, most in zip(self._lengths[1:], _LEFT, strict=True):
            places = range(top + 1 - most, top + 1)
            while none_is_sound(self._losses(places, length), base) and places.start > -_BELOW - _FURTHER:
                places = range(places.start - 1, places.stop - 1)
            self._check(places, length, bounded=True)
            top = places[highest(self._losses(places, length))]
        return self._rungs[places[chosen(self._losses(places, length))]].lr

    def _check(self, places: range, length: int, *, bounded: bool = False) -> None:
        """Refuse to choose among rates of which all did harm, or none."""
        losses, base = self._losses(places, length), self._trials.base
        harmful = none_is_sound(losses, base)
        if harmful or not (bounded or edge_is_seen(losses, base)):
            low, high = self.rungs[0].lr, self.rungs[-1].lr
            found = "each did harm" if harmful else "none did harm, so none is known to be too large"
            raise InputError(
                f"lr auto tried rates from {low:.2g} to {high:.2g}, {length} steps each, and by the objective on "
                f"held-out examples {found}; give lr a number, or use a smooth objective and a usual eps"
            )

    def _losses(self, places: range, length: int) -> list[Losses]:
        """The held-out losses of some trials after so many steps; those that have not taken them go on."""
        rungs = [self._rung(place) for place in places]
        asked = [one for one in rungs if not (one.lost or length in one.losses)]
        done, total = 0, sum(length - len(one.records) for one in asked)
        for one in asked:
            begun = len(one.records)
            self._trials.go_on(one, length, partial(self._tell, done - begun, total))
            done += length - begun
        if asked:
            self._tell(0, total, total)
        return [one.losses.get(length) for one in rungs]

    def _tell(self, before: int, total: int, taken: int) -> None:
        self._watcher.progress("finding the learning rate", before + taken, total)

    def _rung(self, place: int) -> Trial:
        if place not in self._rungs:
            self._rungs[place] = Trial(float(f"{self._usual * _APART**place:.2g}"))
        return self._rungs[place]


def lengths_of(steps: int) -> list[int]:
    """How many steps the trials of a run take: first all of them, then those that are left, each time longer."""
    first = min(max(steps // _FIRST, _FEWEST), _MOST)
    return [min(first * times, steps) for times in (1, *_LONGER)]


def _shown(trial: Trial) -> str:
    steps, loss = trial.last
    return f"{loss:.3f} ({steps})" if loss is not None else f"lost ({steps})"

"""The verdict on a run: what became of it, in a word or two, with the evidence and what to try.

The weights before and after are compared on the same examples, one by one: those of the validation set, and a sample of
the training set. A word is said only where chance is an unlikely cause of what was seen, and the best of several
evaluations has to be the more unlikely the more of them there were. `benchmarks/verdict.py` says how often it is wrong.
Everything here is computed from numbers that a run already has; no torch, so that a report can read it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noback.counts import one_answer_warning
from noback.embedded import MODELS
from noback.health import DOMINATED, ENOUGH_STEPS, SLOPE_UNIT, slope_figures, tie_advice
from noback.journal import Contents
from noback.json_text import has_numbers, number_in
from noback.paired import PerExample, chance_of_gain, in_how_many_cases
from noback.usual import usual_lr
from noback.yardsticks import calibration, readout, untouched

LEARNING, TOO_SMALL, DIVERGING, OVERFITTING = "learning", "too small a step", "diverging", "overfitting"
NO_SIGNAL, TOO_EARLY, TOO_FEW = "no signal", "too early to tell", "too few examples to tell"
_CHANCE = 0.005  # what chance may do where a verdict says that something happened
_PERHAPS = 0.1  # what it may do where advice only has to go with the direction of the loss
_TOGETHER = 0.025  # what it may do on the validation set and on the training sample, where both say the same
_NOTHING = 0.3  # where chance does so much by itself, nothing is seen at all
_MOVES = 0.02  # losses of single examples that changed by less, as a root mean square: the model hardly moved
_TIMES, _AT_LEAST = 3.0, 0.1  # a validation loss that has grown so many times, and by so much, diverges
_LARGEST = 1e100  # of an example's loss: one that is larger has no square
_UNKNOWN = "its lines do not say how each example was answered, so before and after cannot be compared"
_NEEDED = ("step", "score", "objective", "examples")  # the numbers that a line of an evaluation must have


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run, in a word or two, and why one may say so."""

    word: str
    evidence: tuple[str, ...]


def verdict(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> Verdict:
    """Learning, too small a step, diverging, overfitting or no signal, or why that cannot be told.

    A pure function of the journal's records and of what a resumed run makes again where it is lost: the lines of the
    start, of the first, best and last evaluation, and of the training sample. So an interrupted run is judged as one
    that never was.
    """
    evaluated, steps = evaluations(metrics, len(contents.steps)), len(contents.steps)
    broken = [*_stopped(contents, metrics), *_tripled(evaluated)]
    if not broken and (steps < ENOUGH_STEPS or len(evaluated) < 2):
        # By the journal: a line for people may be lost.
        seen = {one.step for one in contents.evaluations} | {int(line["step"]) for line in evaluated}
        few = f"{steps} steps are" if steps < ENOUGH_STEPS else f"{len(seen)} evaluations are"
        needed = f"{ENOUGH_STEPS} steps and 2 evaluations"
        return Verdict(TOO_EARLY, (f"{few} too few to judge: it takes {needed}, or more",))
    course = _Course.of(contents, metrics)
    word = DIVERGING if broken else course.word() if course else TOO_EARLY
    evidence = [*broken, *_evaluated(contents, evaluated, _first(evaluated, metrics))]
    evidence += course.evidence() if course else [_UNKNOWN] * (not broken)
    evidence += _step_size(course, contents) if course and word == TOO_SMALL else []
    evidence += [*_slopes(contents), *_majority(evaluated, metrics), *calibration(metrics), *readout(metrics)]
    return Verdict(word, (*evidence, *_advice(word, course, contents)))


def evaluations(metrics: Sequence[Mapping[str, Any]], steps: float = math.inf) -> list[Mapping[str, Any]]:
    """The lines of evaluations that give numbers, by step; of a step that was evaluated again, the newest.

    `steps`: as many as the journal holds; a line of a later one is not of this course.
    """
    lines = [line for line in metrics if line.get("kind") == "validation" and has_numbers(line, *_NEEDED)]
    sound = {int(line["step"]): line for line in lines if line["examples"] > 0 and _accuracy_is_known(line)}
    return [sound[step] for step in sorted(sound) if 0 <= step <= steps]


def per_example_of(line: Mapping[str, Any]) -> PerExample | None:
    """How each example was answered, as a line has it; None where it does not say."""
    found = [line.get(name) for name in PerExample._fields]
    if not all(isinstance(values, list) and values and all(map(_is_moderate, values)) for values in found):
        return None
    return PerExample(*found) if len({len(values) for values in found}) == 1 else None  # type: ignore[arg-type]


def _is_moderate(value: Any) -> bool:
    """Whether a value is a number whose square is one as well."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def stopped_at(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Where the run stopped for numbers that are none, and what was found; not where a resumed run came further."""
    found: dict[int, str] = {}
    for line in (line for line in metrics if has_numbers(line, "step")):
        if line.get("kind") == "diverged" and line["step"] >= len(contents.steps):
            found[int(line["step"])] = str(line.get("found", ""))
        elif line.get("kind") in ("validation", "test"):  # written later: there it gave numbers
            found = {step: what for step, what in found.items() if step > line["step"]}
    return found


def _accuracy_is_known(line: Mapping[str, Any]) -> bool:
    """Whether a line says its accuracy, or says that there is none: a reward has none."""
    return "accuracy" in line and (line["accuracy"] is None or has_numbers(line, "accuracy"))


def _stopped(contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"the run stopped at step {step}: {found}" for step, found in stopped_at(contents, metrics).items()]


def _tripled(evaluated: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the validation loss, a cross-entropy, is three times what it was; a reward has none."""
    if len(evaluated) < 2 or evaluated[0]["accuracy"] is None:
        return []
    first, last = number_in(evaluated[0], "loss"), number_in(evaluated[-1], "loss")
    if first is None or last is None or last < _TIMES * first or last - first <= _AT_LEAST:
        return []
    return [f"the validation loss went from {first:.4g} to {last:.4g}"]


@dataclass(frozen=True, slots=True)
class _Change:
    """From one evaluation of a set to a later one of the same set, example by example.

    What is called a chance is how likely chance alone gives as much: small where something happened.
    """

    examples: int
    gained: int  # answers that are better now
    lost: int
    better: float  # chance of the score's rise
    worse: float  # of its fall
    falls: float  # of the loss's fall
    rises: float
    learns: float  # of the fall of the loss at its best temperature: not by being less sure alone
    before: float  # mean loss
    after: float
    moved: float  # root mean square of the change of an example's loss

    @classmethod
    def between(cls, before: PerExample | None, after: PerExample | None) -> _Change | None:
        """None where it is not known how each example was answered."""
        if before is None or after is None or len(before.credits) != len(after.credits):
            return None
        pairs, count = list(zip(before.credits, after.credits, strict=True)), len(before.credits)
        squares = ((a - b) ** 2 for a, b in zip(before.losses, after.losses, strict=True))
        return cls(
            count,
            gained=sum(a < b for a, b in pairs),
            lost=sum(a > b for a, b in pairs),
            better=chance_of_gain(before.credits, after.credits),
            worse=chance_of_gain(after.credits, before.credits),
            falls=chance_of_gain(after.losses, before.losses),
            rises=chance_of_gain(before.losses, after.losses),
            learns=chance_of_gain(after.tempered, before.tempered),
            before=math.fsum(before.losses) / count,
            after=math.fsum(after.losses) / count,
            moved=math.sqrt(math.fsum(squares) / count),
        )

    def text(self, what: str) -> str:
        """The change of the loss in words."""
        told, chance = f"the loss of {self.examples} {what} went from {self.before:.3f} to {self.after:.3f}", self.falls
        if min(chance, self.rises) > _PERHAPS or self.learns < _PERHAPS or self.rises < chance:
            return f"{told}; {in_how_many_cases(min(chance, self.rises))}"
        return told + ", so far only because the model is less sure of its answers"


@dataclass(frozen=True, slots=True)
class _Course:
    """The course of a run: its first, best and last evaluation compared, and the share of slopes that are zero."""

    best_step: int
    looks: int  # evaluations after the first: the best is one of so many
    rewarded: bool  # whether a reward judges the answers
    to_last: _Change
    to_best: _Change
    best_to_last: _Change
    training: _Change | None
    zeros: float

    @classmethod
    def of(cls, contents: Contents, metrics: Sequence[Mapping[str, Any]]) -> _Course | None:
        """From a journal and the lines of its evaluations; None where they do not say how each example was answered."""
        evaluated, best = evaluations(metrics, len(contents.steps)), contents.best()
        if len(evaluated) < 2:
            return None
        first, last = _first(evaluated, metrics), evaluated[-1]
        chosen = next((line for line in evaluated if best and line["step"] == best.step), last)
        before, between, after = (per_example_of(line) for line in (first, chosen, last))
        to_last, to_best = _Change.between(before, after), _Change.between(before, between)
        best_to_last = _Change.between(between, after)
        if to_last is None or to_best is None or best_to_last is None:
            return None
        sampled = {line.get("step"): per_example_of(line) for line in metrics if line.get("kind") == "training"}
        slopes = [slope for record in contents.steps for slope in record.slopes]
        return cls(
            best_step=int(chosen["step"]),
            looks=max(len(contents.evaluations) - 1, 1),
            rewarded=first["accuracy"] is None,
            to_last=to_last,
            to_best=to_best,
            best_to_last=best_to_last,
            training=_Change.between(sampled.get(0), sampled.get(len(contents.steps))),
            zeros=slope_figures(slopes)["zero_slope_share"],
        )

    def word(self) -> str:
        """The verdict where the run neither stopped nor lost its way altogether."""
        change, training = self.to_last, self.training
        if self._got_worse():
            return OVERFITTING if training is not None and training.learns < _CHANCE else DIVERGING
        if self.by_score() or (self.by_loss() and change.moved >= _MOVES):
            return LEARNING
        fell = min(change.falls, training.falls if training else 1.0) < _CHANCE
        if self.zeros > DOMINATED and not fell:
            return NO_SIGNAL
        if change.moved < _MOVES:
            return TOO_SMALL
        if change.falls < _CHANCE:
            return TOO_EARLY
        seen = [*(one for each in (change, self.to_best) for one in (each.better, each.falls))]
        return NO_SIGNAL if min([*seen, training.falls if training else 1.0]) > _NOTHING else TOO_FEW

    def _got_worse(self) -> bool:
        """Whether the last weights are worse than the first, or than the best were."""
        change, rises = self.to_last, self.training.rises if self.training else 1.0
        if change.worse < _CHANCE or self.looks * self.best_to_last.worse < _CHANCE:
            return True
        return not self.by_score() and (change.rises < _CHANCE or max(change.rises, rises) < _TOGETHER)

    def by_score(self) -> bool:
        """Whether the score rose: at the end, or at the best of all that were looked at."""
        return min(self.to_last.better, self.looks * self.to_best.better) < _CHANCE

    def by_loss(self) -> bool:
        """Whether the loss fell, at its best temperature: by itself, or less clearly but on other examples as well."""
        last, best, training = self.to_last.learns, self.looks * self.to_best.learns, self.training
        together = training is not None and max(last, training.learns) < _TOGETHER
        return min(last, best) < _CHANCE or together

    def falls(self) -> bool:
        """Whether a loss goes down, as far as one can tell."""
        return any(change.falls < _PERHAPS for change in (self.to_last, self.training) if change)

    def rises(self) -> bool:
        """Whether a loss goes up, as far as one can tell."""
        return any(change.rises < _PERHAPS for change in (self.to_last, self.training) if change)

    def evidence(self) -> list[str]:
        """What was seen, in sentences."""
        told = [self.to_last.text("validation examples")]
        if self.training:
            told.append(self.training.text("training examples"))
        return told if self.rewarded else [self._answers(), *told]

    def _answers(self) -> str:
        change = self.to_last
        said = (
            f"of {change.examples} validation answers {change.gained} became better and {change.lost} worse by the "
            f"last step; {in_how_many_cases(min(change.better, change.worse))}"
        )
        if self.by_loss() and not self.by_score():
            said += (
                f": too few examples to tell by the answers, but the loss fell by {change.before - change.after:.3f}"
            )
        return said


def _first(evaluated: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a gain is counted from: the model before a readout's first fit, else the first evaluation."""
    before = untouched(metrics)
    whole = before is not None and has_numbers(before, *_NEEDED) and _accuracy_is_known(before)
    if before is None or not whole or not evaluated:
        return evaluated[0] if evaluated else {}
    found, first = per_example_of(before), per_example_of(evaluated[0])
    return before if found and first and len(found.credits) == len(first.credits) else evaluated[0]


def _evaluated(contents: Contents, evaluated: Sequence[Mapping[str, Any]], first: Mapping[str, Any]) -> list[str]:
    """The scores of the first, the best and the last evaluation."""
    best = contents.best()
    chosen = [line for line in evaluated if best and line["step"] == best.step]
    if not evaluated:
        return []
    at_best, last = (chosen or evaluated)[-1], evaluated[-1]
    if any(one["accuracy"] is None for one in (first, at_best, last)):
        return [
            f"mean validation reward {first['score']:.3f} before, {at_best['score']:.3f} at the best step "
            f"({at_best['step']}), {last['score']:.3f} at the end"
        ]
    return [
        f"validation accuracy {first['accuracy']:.1%} before, {at_best['accuracy']:.1%} at the best step "
        f"({at_best['step']}), {last['accuracy']:.1%} at the end; objective {first['objective']:.3f} before, "
        f"{last['objective']:.3f} at the end"
    ]


def _slopes(contents: Contents) -> list[str]:
    slopes = [slope for record in contents.steps for slope in record.slopes]
    if not slopes:
        return []
    figures, unit = slope_figures(slopes), contents.header.get("slope_unit", SLOPE_UNIT)
    return [
        f"{figures['zero_slope_share']:.0%} of {len(slopes)} slopes are exactly zero; the mean size of all is "
        f"{figures['mean_abs_slope']:.3g}, the largest {figures['max_abs_slope']:.3g}"
        + ("" if unit == SLOPE_UNIT else f", in {unit}")
    ]


def _step_size(course: _Course, contents: Contents) -> list[str]:
    """How small the step was: what it did to a weight, and what all steps together did to the losses."""
    config, moved = contents.header.get("config", {}), course.to_last.moved
    lr = number_in(config.get("rule", {}), "lr")
    told = (
        f"{len(contents.steps)} steps changed an example's loss by {moved:.2g} (root mean square), less than the "
        f"{_MOVES:g} from which on a model is said to move"
    )
    if lr is None:
        return [told]
    size = slope_figures([slope for record in contents.steps for slope in record.slopes])["mean_abs_slope"]
    step = f"a step moves a weight by about {lr * size:.1g}: lr {lr:g} times the mean size of a slope, {size:.2g}"
    adapter, estimator, rule = (config.get(name, {}).get("kind", "") for name in ("adapter", "estimator", "rule"))
    usual = lr == usual_lr(adapter, estimator, rule, config.get("dtype", "")) and config.get("model") not in MODELS
    carried = "the usual lr was measured on noback's embedded model and need not fit another"
    return [told, step, *([carried] if usual else [])]


def _majority(evaluated: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """A model that answers one label to everything reads as that label's share."""
    labels = next((line.get("labels") for line in metrics if line.get("kind") == "start"), None)
    said = one_answer_warning(evaluated[-1].get("confusion"), labels or [], "validation set") if evaluated else None
    return [said] if said else []


def _advice(word: str, course: _Course | None, contents: Contents) -> list[str]:
    """What to try."""
    config = contents.header.get("config", {})
    lr = config.get("rule", {}).get("lr")
    if word == DIVERGING:
        such = f", such as {lr / 10:g}" if lr else ""
        return [f"try a smaller lr{such}; `noback epsilon` says whether eps is too large"]
    if course is None or word == LEARNING:
        return []
    if word == OVERFITTING:
        return [f"the best weights are those of step {course.best_step}: try fewer steps or more training examples"]
    if course.zeros > DOMINATED:
        return [_tie_advice(course.zeros, config, contents)]
    return [_by_the_loss(word, course, lr)]


def _by_the_loss(word: str, course: _Course, lr: float | None) -> str:
    """What to try: never against the direction of the loss, and a larger lr only where the model hardly moved."""
    if course.falls():
        return "the loss falls: try more steps" + (", and more validation examples" if word == TOO_FEW else "")
    if word == TOO_FEW:
        return "try more validation examples, or more steps"
    if word == TOO_SMALL and not course.rises():
        return _larger_lr(course.to_last.moved, lr)
    return "try a larger batch, more directions, or another prompt, and look at the labels"


def _larger_lr(moved: float, lr: float | None) -> str:
    """How much larger the lr may be for the losses to change by what a run that moves changes them by."""
    times = min(_MOVES / moved, 10.0) if moved else 10.0
    such = f" of up to {times * lr:.2g}" if lr else f" of up to {times:.2g} times as much"
    return f"try more steps, or an lr{such}"


def _tie_advice(zeros: float, config: Mapping[str, Any], contents: Contents) -> str:
    estimator = config.get("estimator", {})
    eps = contents.eps_changes[-1].eps if contents.eps_changes else estimator.get("eps", 0.0)
    kind = config.get("objective", {}).get("kind", "")
    adapting = number_in(config.get("adapt_ties") or {}, "largest")
    return tie_advice(zeros, eps, config.get("batch", 0), estimator.get("directions", 1), kind, adapting=adapting)

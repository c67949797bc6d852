"""The configuration of a run: one frozen tree of option objects, TOML in and out, and its digest."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from noback.adapters import AnyAdapter, Full
from noback.directions import FAMILIES, AnyNoise
from noback.engines.options import AnyEngine, LocalEngine
from noback.engines.quantised import QUANTISED
from noback.errors import InputError, shown
from noback.estimators import AdaptTies, AnyEstimator, TwoSided
from noback.grouping import STEP, group_count
from noback.inputs import read_toml
from noback.json_text import json_text
from noback.objectives import SELECTING, AnyObjective, CrossEntropy
from noback.options import build, check_seed, converted, one_of, option, whole
from noback.readouts import AnyReadout, AutoReadout, ExactReadout
from noback.rules import AnyRule, Sgd
from noback.tasks import TaskSpec, check_line, own_name, spec_for, words_text
from noback.usual import usual_eps, usual_lr
from noback.values import MOST_DIRECTIONS, MOST_STEPS
from noback.weights import DTYPES

if TYPE_CHECKING:
    from typing import Unpack

    from noback.option_types import ConfigOptions

BALANCED = ("batches",)
METHODS = ("estimator", "rule", "noise", "readout", "adapt_ties", "engine", "adapter", "objective")  # have options
_OTHER_NOISE = [kind for kind in typing.get_args(AnyEstimator) if kind.usual_noise != TwoSided.usual_noise]
_USUAL_NOISE = ", ".join([TwoSided.usual_noise, *(f"with {kind.kind} {kind.usual_noise}" for kind in _OTHER_NOISE)])


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that decides a run's bits; what is None is off or left to the rule in its help."""

    model: str = option("mini", "an embedded model by name, a folder, or a model of the Hugging Face hub")
    task: str = option("reviews", "a task of `noback tasks`, or the path of one's own .toml")
    data: str | None = option(None, "a data file, a folder of split files, or hf:NAME; none: the embedded data")
    columns: str | None = option(None, "the data's columns, sentences first and the label last: text,stars")
    template: str | None = option(
        None,
        'in place of the task\'s: "{text} It was {mask}.", columns in braces; without a mask: for causal models',
    )
    words: str | Mapping[str, str] | Mapping[int, str] | None = option(
        None, 'in place of the task\'s: the word of each label in the data: "0=terrible,1=great"'
    )
    shots: int | None = option(None, "training examples per label (k); none: all of them")
    demonstrations: int | None = option(
        None, "causal tasks: examples of train, with their answers, before every prompt; none: no example"
    )
    data_seed: int = option(13, "seed of the k-shot sampling")
    test_limit: int = option(1000, "examples of the test set at most, balanced by label")
    steps: int = option(60, "training steps")
    batch: int = option(64, "examples a step")
    balance: str | None = option(
        None,
        "for skewed data: each batch, and an evaluation's loss, has the labels in equal shares; none: as they come",
        choices=BALANCED,
    )
    seed: int = option(0, "seed of the directions and of the order of the examples")
    dtype: str = option("float32", "type of the weights", choices=DTYPES)
    quantise: str | None = option(
        None, "quantise the frozen weights under an adapter as the model opens; none: as they are", choices=QUANTISED
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; none: a GPU where there is one")
    eval_every: int | None = option(None, "steps between evaluations on the validation set; none: a tenth of the run")
    patience: int | None = option(
        None, "stop after so many evaluations in a row that bring no better weights; none: take all steps"
    )
    metric: str | None = option(
        None, "what says which weights are best, and is reported; none: the task's own", choices=SELECTING
    )
    estimator: AnyEstimator = option(TwoSided(), "how slopes are measured")
    rule: AnyRule = option(Sgd(), "how slopes become moves of the weights")
    noise: AnyNoise | None = option(None, f"family of the directions' noise; none: {_USUAL_NOISE}")
    directions_per: str = option(
        STEP, "whose directions they are: step, or the own ones of each example or of every N: example, group:N"
    )
    readout: AnyReadout | None = option(
        AutoReadout(),
        "rows on top of the label words' own, fitted by their own gradient; auto: exact, where there can be one",
    )
    adapt_ties: AdaptTies | None = option(None, "raise eps while too many slopes are exactly zero; none: keep it")
    engine: AnyEngine = option(LocalEngine(), "what runs the model's forwards")
    adapter: AnyAdapter = option(Full(), "what is tuned: the model's weights, or what is put beside them")
    objective: AnyObjective = option(
        CrossEntropy(), "what a step lowers; one's own: module:function, or reward:module:function"
    )

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[ConfigOptions]) -> None:
            """What a keyword may be: a method is an object, its kind's name or a table."""

    def __post_init__(self) -> None:
        self._name_methods()
        whole("steps", self.steps, MOST_STEPS)
        for name in ("test_limit", "batch"):
            whole(name, getattr(self, name))
        for name in ("shots", "demonstrations", "eval_every", "patience"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for name, limit in (("seed", 2**64), ("data_seed", 2**32)):
            check_seed(name, getattr(self, name), limit)
        one_of("dtype", self.dtype, DTYPES)
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", self.device):
            raise InputError(f"device is {shown(self.device)}; expected cpu, cuda or cuda:N")
        if self.template is not None:
            check_line("template", self.template)
        if self.words is not None:  # one form for files, digests and commands: a table's order would be lost in some
            object.__setattr__(self, "words", words_text(self.words))
        if self.metric is not None:
            one_of("metric", self.metric, SELECTING)
        if self.balance is not None:
            one_of("balance", self.balance, BALANCED)
        if self.quantise is not None:
            one_of("quantise", self.quantise, QUANTISED)
        self._check_groups()
        largest = None if self.adapt_ties is None else self.adapt_ties.largest
        if largest is not None and self.estimator.eps is not None and largest < self.estimator.eps:
            raise InputError(f"adapt_ties.largest is {largest!r}; expected eps, {self.estimator.eps!r}, or more")

    def _check_groups(self) -> None:
        """Refuse more slopes a step than a record holds."""
        most = group_count(self.batch, self.directions_per) * self.estimator.directions
        if most > MOST_DIRECTIONS:
            raise InputError(
                f"directions_per {self.directions_per!r} makes {most:,} directions a step; expected "
                f"{MOST_DIRECTIONS:,} at most: use larger groups, a smaller batch or fewer directions"
            )

    def spec(self) -> TaskSpec:
        """The task that the options describe."""
        return spec_for(self.task, self.columns, self.template, self.words, self.data)

    @property
    def task_name(self) -> str:
        """What the task is called: as it was named, or as the data where template and words are one's own."""
        return own_name(self.task, self.data, self.template, self.words) or self.task

    def _name_methods(self) -> None:
        """Put the object in the place of a method that is given by its kind's name or as a table."""
        for name in METHODS:
            value = getattr(self, name)
            if value is not None and not dataclasses.is_dataclass(value):
                object.__setattr__(self, name, converted(typing.get_type_hints(RunConfig)[name], value, name))

    def settled(self) -> RunConfig:
        """With eps, lr, the noise and the bound of eps spelled out where they were left to the usual ones; not auto."""
        ties = self.adapt_ties
        if ties is not None and ties.largest is None:
            ties = dataclasses.replace(ties, largest=max(1e-2, 10 * self.eps))
        return dataclasses.replace(
            self,
            estimator=dataclasses.replace(self.estimator, eps=self.eps),
            rule=dataclasses.replace(self.rule, lr=self.rule.lr or self.usual_lr),
            noise=self.known_noise,
            adapt_ties=ties,
        )

    @property
    def eps(self) -> float:
        """How far from the weights losses are taken."""
        return self.estimator.eps or usual_eps(*self._kinds)

    @property
    def lr(self) -> float:
        """The learning rate; one that is yet to be found is refused."""
        lr = self.rule.lr or self.usual_lr
        if not isinstance(lr, float | int):
            raise InputError("lr is 'auto', which `noback train` finds before its first step; expected a number here")
        return lr

    @property
    def usual_lr(self) -> float:
        """The learning rate where none is named."""
        return usual_lr(*self._kinds)

    def with_lr(self, lr: float) -> RunConfig:
        """The same run with this learning rate."""
        return dataclasses.replace(self, rule=dataclasses.replace(self.rule, lr=lr))

    @property
    def known_noise(self) -> AnyNoise:
        """The family of the directions' noise."""
        usual: AnyNoise = FAMILIES[self.estimator.usual_noise]
        return self.noise or usual

    @property
    def _kinds(self) -> tuple[str, str, str, str]:
        return self.adapter.kind, self.estimator.kind, self.rule.kind, self.dtype

    @property
    def steps_between_evaluations(self) -> int:
        """Steps between evaluations on the validation set."""
        return self.eval_every or max(self.steps // 10, 1)

    def extended(self, steps: int) -> RunConfig:
        """The same run with more steps; evaluations stay as far apart as they were."""
        return dataclasses.replace(self, steps=steps, eval_every=self.steps_between_evaluations)

    def table(self) -> dict[str, Any]:
        """The configuration as nested tables, every default spelled out; what is None is left out."""
        return _with_off(table_of(self.settled()))

    def given(self) -> dict[str, Any]:
        """The configuration as nested tables; what was left to the adapter is left out."""
        return _with_off(table_of(self))

    def recorded(self) -> dict[str, Any]:
        """The configuration as a journal holds it: without where and how long, which a replay may change."""
        table = self.table()
        table.pop("device", None)
        if self.readout is None:  # as journals have it that are older than readouts, so that digests stay
            del table["readout"]
        for name in self.engine.unrecorded:
            table["engine"].pop(name, None)
        return table

    def toml(self) -> str:
        """The configuration as TOML, every default spelled out."""
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """BLAKE2b over the configuration."""
        text = json_text(self.recorded(), sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()


def config_of(table: Mapping[str, Any]) -> RunConfig:
    """A configuration from nested tables; an unknown key is refused with a suggestion."""
    return build(RunConfig, renamed(table))


def _with_off(table: dict[str, Any]) -> dict[str, Any]:
    """With the word for no readout where there is none; to leave it out would mean the default."""
    return table if "readout" in table else {**table, "readout": ExactReadout.off}


def read_config(path: Path) -> dict[str, Any]:
    """The nested tables of a TOML file."""
    return read_toml(path, "configuration")


# Where options of 0.1.0 stand now.
_RENAMED = {
    "products": "engine.matmul_precision",
    "probes_per_pass": "engine.probes_per_pass",
    "micro_batch": "engine.micro_batch",
    "share": "engine.share",
    "estimator.adapt_ties": "adapt_ties",
}


def renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with each option where it stands now, so that what 0.1.0 wrote can be read."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for old, new in _RENAMED.items():
        *parents, name = old.split(".")
        inside = found.get(parents[0]) if parents else found
        if not isinstance(inside, dict) or name not in inside:
            continue
        value = inside.pop(name)
        *parents, name = new.split(".")
        target = found.setdefault(parents[0], {}) if parents else found
        if isinstance(target, dict):
            both = isinstance(value, dict) and isinstance(target.get(name), dict)
            target[name] = {**value, **target[name]} if both else target.get(name, value)
    return found


def table_of(options: Any) -> dict[str, Any]:
    """An option object as nested tables; what is None is left out."""
    table: dict[str, Any] = {"kind": options.kind} if hasattr(options, "kind") else {}
    for item in dataclasses.fields(options):
        value = getattr(options, item.name)
        if value is not None:
            table[item.name] = table_of(value) if dataclasses.is_dataclass(value) else value
    return table

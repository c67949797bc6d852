"""What is benched: the model's shape, the batch, and who takes part. No torch, so that the command's help is quick."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from noback.bench.shapes import SHAPES
from noback.directions import AnyNoise
from noback.errors import InputError
from noback.estimators import AnyEstimator, TwoSided
from noback.grouping import group_count
from noback.options import one_of, option, whole
from noback.rules import AnyRule, Sgd
from noback.usual import AUTO
from noback.values import MOST_DIRECTIONS

CONTENDERS = ("forwards", "noback", "reference", "adam")
OPTIONAL = (*CONTENDERS, "compiled")  # what can be left out; compiling plain forwards takes minutes for a large model
ADAPTERS = ("full", "lora")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "bfloat16")
PRECISIONS = ("float32", "tf32")
_MOST_TOKENS = 2**28  # of a batch: two gigabytes of tokens alone


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One case of the bench; the field's help is the flag's help."""

    shape: str = option("mini", "random weights of this shape; mini: the embedded model's own", choices=SHAPES)
    model: str | None = option(None, "a real model instead of a shape: embedded, a folder, or a name on the hub")
    batch: int = option(64, "examples in a batch")
    tokens: int = option(48, "tokens in an example; every row is full")
    dtype: str = option("float32", "the type of the weights", choices=DTYPES)
    device: str = option("auto", "where; auto: a CUDA device where there is one", choices=DEVICES)
    matmul_precision: str = option(
        "float32", "on a CUDA device, of float32 matrix products; tf32 rounds their factors", choices=PRECISIONS
    )
    adapter: str = option("full", "what is tuned", choices=ADAPTERS)
    repeats: int = option(20, "timed steps of each contender, after its warm-up; the median counts")
    estimator: AnyEstimator = option(TwoSided(), "how noback measures slopes")
    rule: AnyRule = option(Sgd(), "how noback's slopes become moves")
    noise: AnyNoise | None = option(None, "family of noback's noise; none: the estimator's usual one")
    directions_per: str = option("step", "whose directions noback's are: step, example, or group:N of N examples")
    without: tuple[str, ...] = option((), "contenders to leave out, comma-separated")

    def __post_init__(self) -> None:
        if self.rule.lr == AUTO:
            raise InputError("lr is 'auto', and a benchmark trains nothing; leave it out, or give a number")
        if self.model is None:
            one_of("shape", self.shape, SHAPES)
        for name, value, choices in (
            ("dtype", self.dtype, DTYPES), ("matmul_precision", self.matmul_precision, PRECISIONS),
            ("device", self.device, DEVICES), ("adapter", self.adapter, ADAPTERS),
        ):  # fmt: skip
            one_of(name, value, choices)
        for name in ("batch", "tokens", "repeats"):
            whole(name, getattr(self, name))
        whole("batch's directions", self.directions, MOST_DIRECTIONS)
        whole("batch x tokens", self.batch * self.tokens, _MOST_TOKENS)
        for name in self.without:
            one_of("without", name, OPTIONAL)
        if set(self.without) >= set(CONTENDERS):
            raise InputError("without names every contender; expected one to be left")

    @property
    def directions(self) -> int:
        """Directions of a step of noback."""
        return group_count(self.batch, self.directions_per) * self.estimator.directions

    def table(self) -> dict[str, Any]:
        """The case as JSON holds it, each kind by its name."""
        kinds = {name: getattr(self, name) for name in ("estimator", "rule", "noise")}
        named = {name: None if kind is None else {"kind": kind.kind, **asdict(kind)} for name, kind in kinds.items()}
        return asdict(self) | named | {"forwards": self.estimator.forwards}

    def check_tokens(self, limit: int | None) -> None:
        """Refuse more tokens than the model has positions for."""
        if limit is not None and self.tokens > limit:
            name = self.model or self.shape
            raise InputError(f"tokens is {self.tokens}; model {name!r} takes {limit} at most: use fewer tokens")

"""The options of an engine: which one scores the batches of a run, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noback.options import one_of, option, whole

# What a causal model computes once a step, by the word of the option: prefixes of rows, frozen layers.
SHARED = {"all": (True, True), "prefixes": (True, False), "layers": (False, True), "none": (False, False)}
MATMUL_PRECISIONS = ("float32", "tf32")


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """The model in this process, on a CPU or one GPU."""

    kind: ClassVar[str] = "local"

    probes_per_pass: int | None = option(None, "most points of a step in one forward; none: all, or what fits a GPU")
    micro_batch: int | None = option(None, "most examples in one forward; none: the whole batch, or what fits a GPU")
    share: str = option(
        "all",
        "what a causal model on a CPU computes once a step: prefixes of rows, layers below the tuned",
        choices=SHARED,
    )
    matmul_precision: str = option(
        "float32", "on a GPU, float32 products; tf32 is faster, its slopes noisier", choices=MATMUL_PRECISIONS
    )

    def __post_init__(self) -> None:
        for name in ("probes_per_pass", "micro_batch"):
            if getattr(self, name) is not None:
                whole(f"engine.{name}", getattr(self, name))
        one_of("engine.share", self.share, SHARED)
        one_of("engine.matmul_precision", self.matmul_precision, MATMUL_PRECISIONS)


AnyEngine = LocalEngine

"""The engines that a run can name, by their options. An engine is one file and one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from noback.engines.servers.options import ServerEngine
from noback.errors import InputError, shown
from noback.options import one_of, option, whole

if TYPE_CHECKING:
    from noback.engines.engine import Engine
    from noback.engines.servers.client import Client
    from noback.engines.servers.server import Server
    from noback.weights import Weights

PRECISIONS = ("float32", "tf32")
# What a causal model computes once a step, by the word of the option: prefixes of rows, frozen layers.
SHARED = {"all": (True, True), "prefixes": (True, False), "layers": (False, True), "none": (False, False)}


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A Hugging Face model in this process, on a CPU or a GPU."""

    kind: ClassVar[str] = "local"
    needs_base: ClassVar[bool] = True  # whether the base model is loaded into this process
    gives_features: ClassVar[bool] = True  # whether it hands out what the decoder is given, which a readout needs
    unrecorded: ClassVar[tuple[str, ...]] = ()  # options that decide no bits, which a journal does not hold

    matmul_precision: str = option(
        "float32", "on a GPU, of float32 matrix products; tf32 is faster, its slopes noisier", choices=PRECISIONS
    )
    probes_per_pass: int | None = option(None, "most points of a step in one forward; none: all, or what fits a GPU")
    micro_batch: int | None = option(None, "most examples in one forward; none: the whole batch, or what fits a GPU")
    share: str = option(
        "all", "what a causal model on a CPU computes once a step: prefixes of rows, layers below the tuned",
        choices=SHARED,
    )  # fmt: skip

    def __post_init__(self) -> None:
        one_of("matmul_precision", self.matmul_precision, PRECISIONS)
        one_of("share", self.share, SHARED)
        for name in ("probes_per_pass", "micro_batch"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))

    def check(self, **_run: Any) -> None:
        """Any run can be scored here."""

    def in_groups(self, size: int) -> LocalEngine:
        """The same with so many examples in one forward, where that was left open."""
        return replace(self, micro_batch=self.micro_batch or size)

    def at(self, url: str) -> LocalEngine:
        """It has no address."""
        raise InputError(f"url is {shown(url)} and engine 'local' is in this process; name a server's kind: --engine")

    def open(
        self,
        model: Any,
        weights: Weights,
        word_ids: Sequence[int] | None,
        *,
        hold: bool,
        features: bool = False,
        say: Callable[[str], None],
        meanwhile: Callable[[], None],
        divided: bool = False,
        **_told: Any,
    ) -> Engine:
        """The engine for a model and its tuned weights, as `Local` takes them."""
        from noback.engines.local import Local

        return Local(
            model,
            weights,
            word_ids,
            probes_per_pass=self.probes_per_pass,
            micro_batch=self.micro_batch,
            tf32=self.matmul_precision == "tf32",
            share=self.share,
            hold=hold,
            features=features,
            say=say,
            meanwhile=meanwhile,
            divided=divided,
        )


@dataclass(frozen=True, slots=True)
class SglangEngine(ServerEngine):
    """A model in SGLang servers, which hold the points of a step as adapters."""

    kind: ClassVar[str] = "sglang"
    takes_weights: ClassVar[bool] = True

    def server(self, client: Client) -> Server:
        """An SGLang server at a client's address."""
        from noback.engines.servers.sglang import Sglang

        return Sglang(client)


@dataclass(frozen=True, slots=True)
class VllmEngine(ServerEngine):
    """A model in vLLM servers, which read the points of a step as adapters from a folder."""

    kind: ClassVar[str] = "vllm"
    unrecorded: ClassVar[tuple[str, ...]] = (*ServerEngine.unrecorded, "folder")

    url: str = option("http://127.0.0.1:8000", "address of the vLLM server; several, comma-separated, share the work")
    folder: str | None = option(
        None, "where adapters are written, which the server sees under the same path; none: a temporary folder"
    )

    def server(self, client: Client) -> Server:
        """A vLLM server at a client's address."""
        from noback.engines.servers.vllm import Vllm

        return Vllm(client, Path(self.folder) if self.folder is not None else None)


AnyEngine = LocalEngine | SglangEngine | VllmEngine

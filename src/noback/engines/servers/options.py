"""The options of engines that are inference servers; what is shared stands once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from noback.errors import InputError, shown
from noback.options import option, positive, whole

if TYPE_CHECKING:
    from noback.engines.engine import Engine
    from noback.engines.servers.client import Client
    from noback.engines.servers.copies import Copies
    from noback.engines.servers.server import Server
    from noback.weights import Weights

KEY = "NOBACK_SERVER_KEY"


@dataclass(frozen=True, slots=True)
class ServerEngine:
    """What engines that are inference servers share."""

    kind: ClassVar[str]
    needs_base: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False  # whether weights of the model can be replaced while it runs
    gives_features: ClassVar[bool] = False
    # Where servers are and how long they are waited for decides no bits, so a journal does not hold it.
    unrecorded: ClassVar[tuple[str, ...]] = ("url", "timeout", "wait", "key_variable")

    url: str = option("http://127.0.0.1:30000", "address of the server; several, comma-separated, share the work")
    micro_batch: int | None = option(None, "most examples of a request; none: the batch, or a server's share of it")
    timeout: float = option(120.0, "seconds without an answer after which a server is taken to hang")
    wait: float = option(600.0, "seconds that a run waits for servers that went away")
    key_variable: str = option(KEY, "the environment variable that holds the server's key; the key is never written")

    def __post_init__(self) -> None:
        for name in ("timeout", "wait"):
            positive(f"engine.{name}", getattr(self, name))
        if self.micro_batch is not None:
            whole("micro_batch", self.micro_batch)
        for url in self.urls:
            _check_url(url)

    @property
    def urls(self) -> list[str]:
        """The addresses."""
        return [part.strip().rstrip("/") for part in self.url.split(",")]

    def in_groups(self, _size: int) -> Self:
        """The same: what a server takes together is its own affair."""
        return self

    def at(self, url: str) -> Self:
        """The same at another address."""
        return replace(self, url=url)

    def server(self, client: Client) -> Server:
        """A server of this kind at a client's address."""
        raise NotImplementedError

    def servers(self) -> list[Server]:
        """The servers that are named; nothing is asked of them yet."""
        from noback.engines.servers.client import Client

        key = os.environ.get(self.key_variable) or None
        return [self.server(Client(url, key=key, timeout=self.timeout)) for url in self.urls]

    def open(
        self,
        model: Any,
        weights: Weights,
        word_ids: Sequence[int] | None,
        *,
        name: str,
        adapter: Any,
        mark: str,
        say: Callable[[str], None],
        meanwhile: Callable[[], None],
        **_told: Any,
    ) -> Engine:
        """The engine for the form of a model and its tuned weights.

        `name`: of the model, as the run has it. `mark`: of the run, in its adapters' names.
        """
        from noback.engines.servers.remote import Remote

        return Remote(
            self.servers(), weights, word_ids, self.copies(model, weights, adapter), model=name, mark=mark,
            micro_batch=self.micro_batch, wait=self.wait, say=say, meanwhile=meanwhile,
        )  # fmt: skip

    def copies(self, model: Any, weights: Weights, adapter: Any) -> Copies:
        """What gives the adapters of points: the run's own, or the products that displace the model's linears."""
        from noback.engines.servers.copies import AdapterCopies
        from noback.engines.servers.thin import ThinCopies

        if adapter.servable:
            return AdapterCopies(weights, lambda tensors: adapter.published(model, tensors))
        return ThinCopies(model, weights)

    def check(
        self, *, adapter: Any, causal: bool, written: bool, dtype: str, quantise: str | None, noise_rank: int = 0,
        readout: bool = False,
    ) -> None:  # fmt: skip
        """Refuse a run that no server can score; `written`: answers are written."""
        if readout:
            raise InputError(
                f"engine {self.kind!r} answers with scores, and a readout needs what the decoder is given: leave it "
                "out (--readout words), or use --engine local"
            )
        if not causal:
            raise InputError(
                f"engine {self.kind!r} serves causal models and the task is for masked ones; use a causal task (noback "
                "tasks) with the model that is served, or --engine local"
            )
        if written:
            raise InputError(
                f"engine {self.kind!r} is asked for scores, and the run's answers are written; use a task with label "
                "words or choices, or --engine local"
            )
        if quantise is not None:
            raise InputError(
                f"quantise is {quantise!r} and the base is on a server; start the server with a quantised model, and "
                "leave --quantise out"
            )
        by_products = adapter.as_products and self.takes_weights
        if not adapter.servable and not (by_products and noise_rank):
            also = ", or full with thin directions (--noise rank1 or low_rank)" if by_products else ""
            raise InputError(
                f"engine {self.kind!r} holds adapters beside its model and adapter is {adapter.kind!r}; expected lora"
                f"{also}: use --adapter lora, or --engine local"
            )
        if dtype != "float32":
            raise InputError(
                f"dtype is {dtype!r} and engine {self.kind!r} computes in the server's own; expected float32, in which "
                "the adapter lives here: leave out --dtype"
            )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known, parts = False, None
    if not known or parts is None:
        raise InputError(f"engine.url is {shown(url)}; expected an address such as http://127.0.0.1:30000")
    if parts.username is not None or parts.password is not None or parts.query:
        raise InputError(
            "engine.url holds a name, a password or a query, and run.toml would keep it; put the server's key into the "
            f"environment variable {KEY} and leave it out of the address"
        )

"""What a kind of inference server must do for noback, and the values that pass between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from noback.errors import InputError, NobackError


class Away(NobackError):
    """The server cannot be reached, hangs, or ended while it worked: it may come back."""


class NotLoaded(NobackError):
    """The server knows no adapter of a name that was published: it was started anew, or made room."""


class Refused(InputError):
    """The server understood and said no."""


MARK = "noback-"  # before what is ours on a server: adapters' names, and what it calls weights that were sent


class Limits(NamedTuple):
    """What adapters a server takes."""

    rank: int | None  # the largest; None: it does not say
    slots: int  # adapters of one batch
    targets: frozenset[str] | None  # names of linears; None: any


@dataclass(frozen=True, slots=True)
class About:
    """What a server says of itself."""

    kind: str
    version: str
    model: str  # as it was named when the server was started: a path there, or a name of the hub
    dtype: str
    ranks: int  # of tensor parallelism
    replicas: int  # of data parallelism within the server
    context: int | None  # tokens that a prompt may have
    lora: Limits | None  # None: it takes no adapters
    weights: str = ""  # what it calls the weights that it holds; with MARK first where a run has sent them

    def recorded(self) -> dict[str, Any]:
        """What a journal's header says of the server: that which decides its numbers."""
        return {"kind": self.kind, "version": self.version, "model": self.model, "dtype": self.dtype}


class Copy(NamedTuple):
    """An adapter at a point, as it is published: PEFT's `adapter_config.json`, and tensors by PEFT's names."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]  # float32, on the CPU


class Ask(NamedTuple):
    """One prompt of tokens under one adapter, and what is wanted of it."""

    prompt: tuple[int, ...]
    adapter: str | None  # the name of a published copy; None: the base model alone
    words: tuple[int, ...] = ()  # tokens that may come next: the log-probability of each
    continuation: tuple[int, ...] = ()  # or tokens that follow: the log-probability of each after those before it


class Reply(NamedTuple):
    """The answer to one ask."""

    log_probabilities: Sequence[float]  # one for each word, or for each token of the continuation
    tokens: int  # of the prompt, as the server counts them
    cached: int  # how many of them it did not compute


class Server(Protocol):
    """One server at one address. Every call is a coroutine; what goes wrong is Away, NotLoaded or Refused."""

    kind: ClassVar[str]  # as `--engine` names it
    tested: ClassVar[tuple[str, str]]  # versions that were tested: from the first to below the second
    lora_flag: ClassVar[str]  # what turns adapters on, as an error names it
    rank_flag: ClassVar[str]
    targets_flag: ClassVar[str | None]  # None: it takes any linear
    slots_flag: ClassVar[str]
    cache_off_flag: ClassVar[str]  # turns the prefix cache off
    takes_weights: ClassVar[bool]  # whether weights of its model can be replaced while it runs
    reads_files: ClassVar[bool]  # whether an adapter's files must stay where they were written
    url: str

    async def about(self) -> About:
        """What the server says of itself."""
        ...

    async def loaded(self) -> list[str]:
        """The names of the adapters that it holds."""
        ...

    async def publish(self, name: str, copy: Copy) -> None:
        """Load an adapter under a name that was never used before."""
        ...

    async def retire(self, name: str) -> None:
        """Unload an adapter; one that is not there is none."""
        ...

    async def score(self, asks: Sequence[Ask], *, apart: bool = False) -> list[Reply]:
        """Answer prompts in any mix of adapters, in their order; a server that takes one at a time is asked so.

        `apart`: use nothing that earlier requests left in the prefix cache.
        """
        ...

    async def rebase(self, tensors: Mapping[str, Tensor], mark: str) -> None:
        """Put weights in the place of the model's own, by the names of its files; they are then called `mark`."""
        ...

    async def restore(self) -> None:
        """Put the model's own weights back."""
        ...

    async def close(self) -> None:
        """Give back its connections."""
        ...

    def request_for(self, name: str, prompt: str | list[int]) -> tuple[str, dict[str, Any]]:
        """A path and a body with which any client asks for an adapter's next token."""
        ...

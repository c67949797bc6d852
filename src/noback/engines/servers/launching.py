"""The command that starts a server fit for a run: adapters on, of its rank and on its linears, room for its points."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from noback.engines.servers.vllm import RUNTIME, served_rank
from noback.errors import InputError


@dataclass(frozen=True, slots=True)
class Served:
    """What a server is to be started with."""

    model: str
    rank: int
    targets: tuple[str, ...] | None  # the last names of linears; None: not known here
    slots: int  # adapters of one batch
    dtype: str = "auto"
    ranks: int = 1  # of tensor parallelism
    host: str = "127.0.0.1"
    port: int = 8000
    cpu: bool = False


class Launch(NamedTuple):
    """A command: the variables of its environment, its words in the lines in which it is shown, and what to know."""

    variables: dict[str, str]
    lines: list[list[str]]
    notes: list[str]

    @property
    def words(self) -> list[str]:
        """The command, word by word."""
        return [word for line in self.lines for word in line]

    def text(self) -> str:
        """The command for a shell."""
        first = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        lines = [" ".join(first), *map(shlex.join, self.lines)] if first else [*map(shlex.join, self.lines)]
        return " \\\n    ".join(lines)


def launch(kind: str, served: Served) -> Launch:
    """The command for a kind of server."""
    return _COMMANDS[kind](served)


def _sglang(served: Served) -> Launch:
    """SGLang takes a step's points as tensors, one payload for each rank, so it needs no disk."""
    lines = [
        ["python", "-m", "sglang.launch_server", "--model-path", served.model, "--dtype", served.dtype],
        *_tp("--tp", served.ranks),
        ["--enable-lora", "--max-lora-rank", str(served.rank)],
        ["--lora-target-modules", *(served.targets or ("all",))],
        ["--max-loras-per-batch", str(served.slots + 1)],
        ["--host", served.host, "--port", str(served.port)],
    ]
    notes = [
        f"--max-loras-per-batch: the {served.slots} points of a step, and one for requests without an adapter; fewer "
        "slots only take longer",
        "adapters come and go while it runs, which SGLang does without data parallelism (--dp 1): for more throughput "
        "start several servers and name them all (--url A,B)",
    ]
    if served.cpu:
        lines.insert(1, ["--device", "cpu", "--attention-backend", "torch_native", "--lora-backend", "torch_native"])
    return Launch({"SGLANG_USE_CPU_ENGINE": "1"} if served.cpu else {}, lines, [*notes, *_precision(served)])


def _vllm(served: Served) -> Launch:
    """A step's points are read from folders that server and noback see."""
    if served.dtype == "float32" and not served.cpu:
        raise InputError(
            "vLLM's adapters are bfloat16 or float16 on a GPU, so it cannot serve a run in float32 there; expected "
            "--serve-dtype auto, bfloat16 or float16, or --engine sglang"
        )
    lines = [
        ["vllm", "serve", served.model, "--dtype", served.dtype],
        *_tp("--tensor-parallel-size", served.ranks),
        ["--enable-lora", "--max-lora-rank", str(served_rank(served.rank))],
        ["--max-loras", str(served.slots), "--max-cpu-loras", str(served.slots + 2)],
        ["--api-server-count", "1"],
        ["--host", served.host, "--port", str(served.port)],
    ]
    notes = [
        f"--max-loras: the {served.slots} points of a step; fewer slots only take longer",
        f"{RUNTIME.partition('=')[0]}: adapters come and go while it runs; vLLM warns against it on a server that "
        "strangers reach",
        "--api-server-count 1: another API process would not know the adapters that this one was told to load",
        "noback writes each point's adapter into a folder that the server reads: both on one machine, or --folder DIR "
        "on a disk that both see under the same path",
    ]
    if served.cpu:
        lines.insert(1, ["--enforce-eager", "--block-size", "32"])
    variable, _, value = RUNTIME.partition("=")
    return Launch({variable: value}, lines, [*notes, *_precision(served)])


def _tp(flag: str, ranks: int) -> list[list[str]]:
    return [[flag, str(ranks)]] if ranks > 1 else []


def _precision(served: Served) -> list[str]:
    if served.dtype == "float32":
        return []
    return [
        "in bfloat16 a slope at eps 1e-3 is mostly rounding: train with a larger one, "
        "about 1e-2; float16 rounds eight times finer, where the model's activations fit it",
    ]


_COMMANDS: dict[str, Callable[[Served], Launch]] = {"sglang": _sglang, "vllm": _vllm}
KINDS: Sequence[str] = tuple(_COMMANDS)

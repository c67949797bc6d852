"""noback engine command: the command that starts a server fit for a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from noback.cli.commands import add_json, say, whole_number
from noback.errors import InputError

if TYPE_CHECKING:
    from noback.config import RunConfig
    from noback.engines.servers.launching import Served

HELP = "print the command that starts an inference server fit for a run"
DESCRIPTION = """
Print the command that starts an inference server fit for a run: with adapters on, of the run's rank and on its linears,
and with room for the points of a step. It takes the options of the run that is to be trained; nothing is started.

  noback engine command meta-llama/Llama-3.1-8B --engine sglang
  noback engine command meta-llama/Llama-3.1-70B --engine vllm --tp 4 --directions 2
  noback engine command ./base --engine sglang --set adapter.rank=16 --set adapter.targets=attention
"""
DTYPES = ("auto", "bfloat16", "float16", "float32")
_PORTS = {"sglang": 30000, "vllm": 8000}
_TAKES_WEIGHTS = ("sglang",)
_TERMS = 32  # of an adapter beside weights that are sent: 31 moves, and a point


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    from noback.cli.flags import add_config_flags

    parser.add_argument("served", metavar="MODEL", help="what the server is to serve: a folder there, or a hub model")
    parser.add_argument("--tp", metavar="N", help="GPUs that share the model by tensor parallelism (default 1)")
    parser.add_argument(
        "--serve-dtype", default="auto", metavar="NAME",
        help="what the server computes in: auto (the checkpoint's own; the default), bfloat16, float16 or float32",
    )  # fmt: skip
    add_config_flags(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the command of the engine that was named, or of each."""
    from noback.cli.flags import config_from
    from noback.engines.servers.launching import KINDS, launch
    from noback.options import one_of

    if arguments.model is not None:
        raise InputError("--model is what the server serves; name it once: noback engine command MODEL")
    one_of("--serve-dtype", arguments.serve_dtype, DTYPES)
    ranks = whole_number("--tp", arguments.tp, 4096) or 1
    arguments.model, arguments.adapter = arguments.served, arguments.adapter or "lora"
    config = config_from(arguments)
    kinds = [config.engine.kind] if config.engine.kind in KINDS else KINDS
    found = {kind: launch(kind, _served(config, arguments.serve_dtype, ranks, kind)) for kind in kinds}
    values = {
        kind: {"environment": one.variables, "command": one.words, "shell": one.text(), "notes": one.notes}
        for kind, one in found.items()
    }
    say(arguments, values, "\n\n".join(_text(kind, one.text(), one.notes, config) for kind, one in found.items()))


def _served(config: RunConfig, dtype: str, ranks: int, kind: str) -> Served:
    from noback.engines.servers.forms import targets_of
    from noback.engines.servers.launching import Served

    adapter: Any = config.adapter
    by_products = config.known_noise.rank if adapter.as_products and kind in _TAKES_WEIGHTS else 0
    if not adapter.servable and not by_products:
        raise InputError(
            f"adapter is {adapter.kind!r}; servers hold LoRA adapters: use --adapter lora, or for SGLang (--engine "
            "sglang) --adapter full --set adapter.tune=linears --noise rank1"
        )
    rank = _TERMS * by_products or adapter.rank
    parts = urlsplit(getattr(config.engine, "url", ""))
    return Served(
        config.model, rank, targets_of(config.model, adapter), config.estimator.forwards, dtype,
        ranks, parts.hostname or "127.0.0.1", parts.port or _PORTS[kind], cpu=config.device == "cpu",
    )  # fmt: skip


def _text(kind: str, command: str, notes: list[str], config: RunConfig) -> str:
    """The command, what to know, and what to do next."""
    url = f"http://127.0.0.1:{_PORTS[kind]}"
    return "\n".join(
        [
            f"{kind}:",
            command,
            *(f"  - {note}" for note in notes),
            f"then: noback train --engine {kind} --url {url} --model {config.model} {_tuned(config)} --task TASK",
        ]
    )


def _tuned(config: RunConfig) -> str:
    if config.adapter.servable:
        return "--adapter lora"
    return f"--adapter full --set adapter.tune=linears --noise {config.known_noise.kind}"

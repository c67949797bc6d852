"""noback engine load: a run's adapter put onto an inference server under a name."""

from __future__ import annotations

import argparse
import shlex

from noback.cli.commands import add_json, say
from noback.json_text import json_text

HELP = "put a run's LoRA adapter onto an inference server, for its clients"
DESCRIPTION = """
Put the adapter that a run tuned onto an inference server under a name, so that the server's clients can use it at once.
The server must serve the run's base model; where that is at hand here, the server's scores are compared with it, and an
adapter that answers otherwise is taken back.

  noback engine load runs/reviews-causal-001 http://127.0.0.1:30000 reviews
  noback engine load runs/reviews-causal-001 http://127.0.0.1:8000 reviews --replace

SGLang takes the adapter from memory, and forgets it when it is stopped. vLLM reads it from a folder (--folder, or
`served` in the run's own), which both must see under the same path, and which stays as long as the adapter is served.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its journal file alone")
    parser.add_argument("address", metavar="URL", help="the server's address: http://HOST:PORT")
    parser.add_argument("name", metavar="NAME", help="what the server's clients call the adapter")
    parser.add_argument(
        "--at", default="best", metavar="STEP",
        help="whose weights: best (by validation; the default), final, base, or a step's number",
    )  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="where the base model is now, if not where it was")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N, if not where the run was")
    parser.add_argument("--folder", metavar="DIR", help="vLLM: where it reads the adapter (default: served in the run)")
    parser.add_argument(
        "--key-variable", metavar="NAME",
        help="the environment variable that holds the server's key (default NOBACK_SERVER_KEY)",
    )  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="put it in the place of an adapter that has the name")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Load it and say how to ask for it."""
    from noback.cli.display import Display
    from noback.serving import load

    told = {"folder": arguments.folder, "key_variable": arguments.key_variable}
    loaded = load(
        arguments.run,
        arguments.address,
        arguments.name,
        at=arguments.at,
        model=arguments.model,
        device=arguments.device,
        told={name: value for name, value in told.items() if value is not None},
        again=arguments.replace,
        watcher=Display(),
    )
    off = loaded.difference
    compared = "" if off is None else f"; its scores there differ from those here by at most {off:.1g}"
    body = shlex.quote(json_text(loaded.body))
    lines = [
        f"the adapter of step {loaded.step} ({loaded.weights[:12]}) is on {loaded.kind} as {loaded.name!r}{compared}",
        *([f"its files are in {loaded.folder}: leave them there while it is served"] if loaded.folder else []),
        f"ask for it: curl {loaded.url}{loaded.path} -H 'Content-Type: application/json' -d {body}",
    ]
    say(arguments, loaded._asdict(), "\n".join(lines))

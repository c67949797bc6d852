"""Records what a real server answers, for tests that run without one: `python -m tests.servers.recording sglang|vllm`.

It writes tests/data/ENGINE-VERSION.json: the exchanges of a few scenes. Of long answers those entries are kept that are
read. Paths of this machine become /served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import transformers

from noback.embedded import MODELS
from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy, NotLoaded, Refused, Server
from noback.engines.servers.sglang import Sglang
from noback.engines.servers.vllm import Vllm
from tests.servers.adapters import PROMPTS, RANK, WORDS, adapter_tensors, save_two_heads
from tests.servers.starting import lora_flags, serving

DATA = Path(__file__).parents[1] / "data"
NO_LOADING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "False"}
SHARED = tuple(range(200, 264))  # two blocks of the cache
LONG = [Ask((*SHARED, last), "one", words=tuple(WORDS)) for last in (7, 8)]
MIXED = [Ask(tuple(prompt), name, words=tuple(WORDS)) for name in (None, "one", "two") for prompt in PROMPTS]
SPELLED = [Ask((5, 6, 7), "one", continuation=tokens) for tokens in ((8, 20, 30), (8, 21))]
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"],
          "task_type": "CAUSAL_LM", "bias": "none"}  # fmt: skip
# Of /server_info, which has some 400 entries, and of /metrics, what is read.
ENTRIES = (
    "version", "model_path", "dtype", "tp_size", "dp_size", "context_length", "enable_lora", "max_lora_rank",
    "max_loras_per_batch", "lora_target_modules",
)  # fmt: skip
METRICS = ("vllm:lora_requests_info", "vllm:prefix_cache")


async def all_is_well(server: Server, one: Copy, two: Copy) -> list:
    """Two adapters come, are asked and go."""
    told = [await server.about()]
    await server.publish("one", one)
    await server.publish("two", two)
    told.append(await server.loaded())
    for asks in (MIXED, SPELLED, SPELLED, LONG, LONG):
        told.append(await server.score(asks))
    for name in ("one", "two", "three"):
        await server.retire(name)
    return [*told, await server.loaded()]


async def what_is_refused(server: Server, one: Copy) -> list[str]:
    """A rank and a linear that it does not take, a name that is there already, and one that is not there."""
    odd = ODD[server.kind]
    larger = Copy({**CONFIG, "r": 2 * RANK}, {name: _wider(name, part) for name, part in one.tensors.items()})
    other = Copy({**CONFIG, "target_modules": [odd]},
                 {name.replace("q_proj", odd): part for name, part in one.tensors.items()})  # fmt: skip
    await server.publish("here", one)
    said = []
    for name, copy in (("larger", larger), ("odd", other), ("here", one)):
        try:
            await server.publish(name, copy)
        except Refused as error:
            said.append(str(error))
    try:
        await server.score([Ask((5, 6), "nobody", words=(7,))])
    except NotLoaded as error:
        said.append(str(error))
    await server.retire("here")
    return said


ODD = {"sglang": "o_proj", "vllm": "zz_proj"}  # a linear that the server was not started for; vLLM takes all there are


async def no_adapters(server: Server, one: Copy) -> list:
    """What a server says that takes none, or none while it runs."""
    about = await server.about()
    try:
        await server.publish("one", one)
    except Refused as error:
        return [about, str(error)]
    raise AssertionError("it took one")


class World(NamedTuple):
    """A server's flags and variables, and what is done there with how many adapters."""

    flags: list[str]
    scene: Callable[..., Any]
    copies: int = 1
    variables: dict[str, str] = {}  # noqa: RUF012 (never written)


WORLDS = {
    "sglang": {
        "well": World(lora_flags("sglang"), all_is_well, 2),
        "refused": World(lora_flags("sglang"), what_is_refused),
        "no-lora": World([], no_adapters),
    },
    "vllm": {
        "well": World(lora_flags("vllm"), all_is_well, 2),
        "refused": World(lora_flags("vllm"), what_is_refused),
        "no-lora": World([], no_adapters),
        "no-loading": World(lora_flags("vllm"), no_adapters, variables=NO_LOADING),
    },
}
MORE = {"sglang": ("--context-length", "512", "--sleep-on-idle"), "vllm": ()}


class Recorder(Client):
    """A client that remembers what was asked and answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.exchanges: list[dict] = []

    async def _sent(self, method, path, body, timeout):
        reply = await super()._sent(method, path, body, timeout)
        self.exchanges.append({
            "method": method, "path": path, "body": without_chance(body), "status": reply.status_code,
            "reply": _kept(path, reply.text),
        })  # fmt: skip
        return reply


def without_chance(body):
    """A body without what differs each time: the salt, where an adapter's folder is, and its numbers."""
    if not body:
        return None
    kept = {key: value for key, value in body.items() if key != "cache_salt"}
    if isinstance(kept.get("lora_path"), str):
        kept["lora_path"] = "/served/adapter"
    if "serialized_named_tensors" in kept:
        kept["serialized_named_tensors"] = len(kept["serialized_named_tensors"])
    return kept


def _kept(path: str, text: str) -> str:
    """Of an answer, what is read."""
    if path == "/server_info":
        found = json.loads(text)
        return json.dumps({name: found[name] for name in ENTRIES})
    if path == "/metrics":
        return "\n".join(line for line in text.splitlines() if any(word in line for word in METRICS))
    return text


def _wider(name, part):
    return part.repeat(2, 1) if "lora_A" in name else part.repeat(1, 2)


async def _played(server: Server, scene: Callable[..., Any], copies: list[Copy]) -> Any:
    try:
        return await scene(server, *copies)
    finally:
        await server.close()


def _recorded(engine: str, world: World, model: Path) -> tuple[list[dict], Any]:
    """The exchanges of a scene, without this machine's paths, and what the scene gives."""
    copies = [Copy(CONFIG, adapter_tensors(model, seed)) for seed in range(1, 1 + world.copies)]
    with serving(engine, model, *MORE[engine], *world.flags, variables=world.variables) as running:
        recorder = Recorder(running.url)
        found = asyncio.run(_played({"sglang": Sglang, "vllm": Vllm}[engine](recorder), world.scene, copies))
    text = json.dumps(recorder.exchanges).replace(str(model), "/served/model").replace(running.url, "/served")
    return json.loads(re.sub(r"/tmp/noback-adapters[\w.-]*/[\w.-]*", "/served/adapter", text)), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=WORLDS)
    engine = parser.parse_args().engine
    model = save_two_heads(
        Path(tempfile.mkdtemp()) / "model", transformers.AutoTokenizer.from_pretrained(MODELS["mini"])
    )
    lines, version = [], ""
    for name, world in WORLDS[engine].items():
        exchanges, found = _recorded(engine, world, model)
        print(name, found, flush=True)
        version = found[0].version if name == "well" else version
        lines.append(f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one)}" for one in exchanges) + "\n ]")
    (DATA / f"{engine}-{version}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

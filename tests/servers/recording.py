"""Records what a real vLLM answers, for the tests that run without one: `python -m tests.servers.recording`.

It writes tests/data/vllm-VERSION.json: three servers' exchanges. Paths of this machine become /served.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from pathlib import Path

import transformers

from noback.embedded import MODELS
from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy, NotLoaded, Refused
from noback.engines.servers.vllm import Vllm
from tests.servers.adapters import PROMPTS, RANK, WORDS, adapter_tensors, save_two_heads
from tests.servers.starting import lora_flags, serving

NO_LOADING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "False"}
DATA = Path(__file__).parents[1] / "data"
SHARED = tuple(range(200, 264))  # two blocks of the cache
LONG = [Ask((*SHARED, last), "one", words=tuple(WORDS)) for last in (7, 8)]
MIXED = [Ask(tuple(prompt), name, words=tuple(WORDS)) for name in (None, "one", "two") for prompt in PROMPTS]
SPELLED = [Ask((5, 6, 7), "one", continuation=tokens) for tokens in ((8, 20, 30), (8, 21))]
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"],
          "task_type": "CAUSAL_LM", "bias": "none"}  # fmt: skip


async def all_is_well(server: Vllm, one: Copy, two: Copy) -> list:
    """Two adapters come, are asked and go."""
    told = [await server.about()]
    await server.publish("one", one)
    await server.publish("two", two)
    told += [await server.loaded(), await server.score(MIXED), await server.score(SPELLED)]
    told += [await server.score(LONG), await server.score(LONG)]
    for name in ("one", "two", "three"):
        await server.retire(name)
    return [*told, await server.loaded()]


async def what_is_refused(server: Vllm, one: Copy) -> list[str]:
    """A name that is not there, one that is there already, a rank and a linear that it does not take."""
    larger = Copy({**CONFIG, "r": 2 * RANK}, {name: _wider(name, part) for name, part in one.tensors.items()})
    odd = Copy(CONFIG, {name.replace("q_proj", "zz_proj"): part for name, part in one.tensors.items()})
    await server.publish("here", one)
    said = []
    for name, copy in (("larger", larger), ("odd", odd), ("here", one)):
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


async def no_adapters(server: Vllm, one: Copy) -> list:
    """What a server says that takes none, or none while it runs."""
    about = await server.about()
    try:
        await server.publish("one", one)
    except Refused as error:
        return [about, str(error)]
    raise AssertionError("it took one")


class Recorder(Client):
    """A client that remembers what was asked and answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.exchanges: list[dict] = []

    async def _sent(self, method, path, body, timeout):
        reply = await super()._sent(method, path, body, timeout)
        text = reply.text
        if path == "/metrics":
            kept = ("vllm:lora_requests_info", "vllm:prefix_cache")
            text = "\n".join(line for line in text.splitlines() if any(word in line for word in kept))
        self.exchanges.append(
            {"method": method, "path": path, "body": without_chance(body), "status": reply.status_code, "reply": text}
        )
        return reply


def without_chance(body):
    """A body without what differs each time: the salt, and where an adapter's folder is."""
    if not body:
        return None
    kept = {key: value for key, value in body.items() if key != "cache_salt"}
    return kept | ({"lora_path": "/served/adapter"} if "lora_path" in kept else {})


async def _played(server, scene):
    try:
        return await scene(server)
    finally:
        await server.close()


def _wider(name, part):
    return part.repeat(2, 1) if "lora_A" in name else part.repeat(1, 2)


def main() -> None:
    found, place = {}, Path(tempfile.mkdtemp())
    model = save_two_heads(place / "model", transformers.AutoTokenizer.from_pretrained(MODELS["mini"]))
    one, two = (Copy(CONFIG, adapter_tensors(model, seed)) for seed in (1, 2))
    worlds = {
        "well": (lora_flags("vllm"), {}, lambda server: all_is_well(server, one, two)),
        "refused": (lora_flags("vllm"), {}, lambda server: what_is_refused(server, one)),
        "no-lora": ([], {}, lambda server: no_adapters(server, one)),
        "no-loading": (lora_flags("vllm"), NO_LOADING, lambda server: no_adapters(server, one)),
    }  # fmt: skip
    for name, (flags, variables, scene) in worlds.items():
        with serving("vllm", model, *flags, variables=variables) as running:
            recorder = Recorder(running.url)
            print(name, asyncio.run(_played(Vllm(recorder), scene)))
            text = json.dumps(recorder.exchanges).replace(str(model), "/served/model").replace(running.url, "/served")
            found[name] = json.loads(re.sub(r"/tmp/noback-adapters[\w.-]*/[\w.-]*", "/served/adapter", text))
    version = json.loads(found["well"][0]["reply"])["version"]
    worlds_text = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one)}" for one in exchanges) + "\n ]"
        for name, exchanges in found.items()
    ]
    (DATA / f"vllm-{version}.json").write_text("{\n" + ",\n".join(worlds_text) + "\n}\n")


if __name__ == "__main__":
    main()

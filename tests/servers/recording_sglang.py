"""Records what a real SGLang answers, for the tests that run without one: `python -m tests.servers.recording_sglang`.

It writes tests/data/sglang-VERSION.json: the exchanges of two servers, one with adapters and one without. Of
`/server_info`, which has some 400 entries, those are kept that are read. Paths of this machine become /served.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

from noback.embedded import MODELS
from noback.engines.servers.client import Client
from noback.engines.servers.server import Ask, Copy, NotLoaded, Refused
from noback.engines.servers.sglang import Sglang
from tests.servers.adapters import PROMPTS, RANK, WORDS, adapter_tensors
from tests.servers.starting import lora_flags, serving

DATA = Path(__file__).parents[1] / "data"
READ = (
    "version", "model_path", "dtype", "tp_size", "dp_size", "context_length", "enable_lora", "max_lora_rank",
    "max_loras_per_batch", "lora_target_modules",
)  # fmt: skip
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"],
          "task_type": "CAUSAL_LM", "bias": "none"}  # fmt: skip
MIXED = [Ask(tuple(prompt), name, words=tuple(WORDS)) for name in (None, "one", "two") for prompt in PROMPTS]
SPELLED = [Ask((5, 6, 7), "one", continuation=tokens) for tokens in ((8, 20, 30), (8, 21))]


async def all_is_well(server: Sglang, one: Copy, two: Copy) -> list:
    """Two adapters come, are asked and go."""
    told = [await server.about()]
    await server.publish("one", one)
    await server.publish("two", two)
    told += [await server.loaded(), await server.score(MIXED), await server.score(SPELLED), await server.score(SPELLED)]
    for name in ("one", "two", "three"):
        await server.retire(name)
    return [*told, await server.loaded()]


async def what_is_refused(server: Sglang, one: Copy) -> list[str]:
    """A name that is there already, a rank and a linear that it does not take, and a name that is not there."""
    larger = Copy({**CONFIG, "r": 2 * RANK}, one.tensors)
    odd = Copy({**CONFIG, "target_modules": ["o_proj"]}, one.tensors)
    await server.about()
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


async def no_adapters(server: Sglang, one: Copy) -> list:
    """What a server says that takes none."""
    about = await server.about()
    try:
        await server.publish("one", one)
    except Refused as error:
        return [about, str(error)]
    raise AssertionError("it took one")


def copies(model: Path) -> list[Copy]:
    return [Copy(CONFIG, adapter_tensors(model, seed)) for seed in (1, 2)]


class Recorder(Client):
    """A client that remembers what was answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.exchanges: list[list] = []

    async def _sent(self, method, path, body, timeout):
        reply = await super()._sent(method, path, body, timeout)
        told = reply.text
        if path == "/server_info":
            found = json.loads(told)
            told = json.dumps({name: found[name] for name in READ})
        self.exchanges.append([method, path, reply.status_code, told])
        return reply


async def _played(server: Sglang, *scenes):
    try:
        return [await scene(server) for scene in scenes]
    finally:
        await server.close()


def main() -> None:
    place = Path(tempfile.mkdtemp())
    model = Path(shutil.copytree(MODELS["mini-causal"], place / "model"))
    one, two = copies(model)
    scenes = {
        "well": (lora_flags("sglang"), lambda server: all_is_well(server, one, two)),
        "refused": (lora_flags("sglang"), lambda server: what_is_refused(server, one)),
        "no-lora": ([], lambda server: no_adapters(server, one)),
    }
    worlds: dict[str, list] = {}
    for flags in (lora_flags("sglang"), []):
        with serving("sglang", model, "--context-length", "512", "--sleep-on-idle", *flags) as running:
            for name, (wanted, scene) in scenes.items():
                if wanted == flags:
                    recorder = Recorder(running.url)
                    print(name, asyncio.run(_played(Sglang(recorder), scene)), flush=True)
                    text = json.dumps(recorder.exchanges).replace(str(model), "/served/model")
                    worlds[name] = json.loads(text)
    version = json.loads(worlds["well"][0][3])["version"]
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(one)}" for one in exchanges) + "\n ]"
        for name, exchanges in worlds.items()
    ]
    (DATA / f"sglang-{version}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

"""vLLM over HTTP: adapters from folders that the server sees too, one request for each of them.

Its prefix cache keeps keys and values by an adapter's name and path, so new weights under an old name and path are
answered with those of the old ones, and nobody is told. Here every load has a path of its own, and every request of an
adapter carries a salt that no other load has.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from noback.engines.servers.adapter_files import AdapterFiles
from noback.engines.servers.client import Client
from noback.engines.servers.precision import precision_of
from noback.engines.servers.server import About, Ask, Away, Copy, Limits, NotLoaded, Refused, Reply
from noback.errors import shown

MOST_WORDS = 128  # tokens of which a request may ask the log-probabilities
RUNTIME = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
_LOWEST = -9999.0  # what it writes for minus infinity
_PROBE = ((3, 4, 5, 6, 7, 8, 9, 10), (10, 9, 8, 7))  # tokens that any vocabulary has

Prompt = tuple[int, ...]


class _Held(NamedTuple):
    """An adapter's files, and the salt of its requests."""

    path: Path
    salt: str


@dataclass(slots=True)
class _Request:
    """Prompts of one adapter that go out together, and the tokens that are asked for after each of them."""

    adapter: str | None
    words: dict[int, None] = field(default_factory=dict)
    prompts: dict[Prompt, None] = field(default_factory=dict)

    def takes(self, words: Iterable[int]) -> bool:
        """Whether there is room for more tokens."""
        return len(self.words.keys() | set(words)) <= MOST_WORDS

    def add(self, prompt: Prompt, words: Iterable[int]) -> None:
        """Ask for tokens after a prompt."""
        self.prompts[prompt] = None
        self.words.update(dict.fromkeys(words))


class Vllm:
    """One vLLM server; its calls are those of 0.32."""

    kind: ClassVar[str] = "vllm"
    tested: ClassVar[tuple[str, str]] = ("0.32", "0.33")
    lora_flag: ClassVar[str] = f"--enable-lora, and {RUNTIME} in its environment"
    rank_flag: ClassVar[str] = "--max-lora-rank"
    targets_flag: ClassVar[str | None] = None
    slots_flag: ClassVar[str] = "--max-loras"
    cache_off_flag: ClassVar[str] = "--no-enable-prefix-caching"
    takes_weights: ClassVar[bool] = False
    reads_files: ClassVar[bool] = True

    def __init__(self, client: Client, folder: Path | None = None) -> None:
        """`folder`: for the adapters' files, which the server reads; none: a temporary one of this machine."""
        self._client, self.url = client, client.url
        self._files, self._held = AdapterFiles(folder), dict[str, _Held]()
        self._base: str | None = None  # what a request calls the model without an adapter
        self._hits = 0.0  # tokens that the server has found in its prefix cache so far

    async def about(self) -> About:
        """From its version, its list of models, its metrics and the scores of two prompts.

        It tells its type, its largest rank and its targets to developers only. Its scores show the type.
        """
        told = await self._client.get("/version")
        if not isinstance(told, Mapping) or not isinstance(told.get("version"), str):
            raise Refused(f"{self.url} is no vLLM server: its /version holds no version; see --engine and --url")
        base = await self._base_model()
        asks = [Ask(prompt, None, words=tuple(range(MOST_WORDS))) for prompt in _PROBE]
        probed = await self.score(asks)
        metrics = await self._client.text("/metrics")  # how many slots there are it says once it has answered
        return About(
            kind=self.kind,
            version=told["version"],
            model=str(base.get("root") or base["id"]),
            dtype=precision_of([one.log_probabilities for one in probed]),
            ranks=1,
            replicas=_replicas(metrics),
            context=base.get("max_model_len"),
            lora=_limits(metrics),
        )

    async def loaded(self) -> list[str]:
        """Adapters stand in the list of models with the model as their parent."""
        return [str(one["id"]) for one in await self._models() if one.get("parent")]

    async def publish(self, name: str, copy: Copy) -> None:
        """Write a new folder and have it loaded; it stays until the adapter goes, for the server may read it again."""
        path = await asyncio.to_thread(self._files.write, name, copy)
        self._held[name] = _Held(path, secrets.token_hex(8))
        try:
            body = {"lora_name": name, "lora_path": str(path)}
            await self._client.tell("/v1/load_lora_adapter", body, again=False)
        except Refused as error:
            self._forget(name)
            raise Refused(self._why_not(str(error))) from None

    async def retire(self, name: str) -> None:
        """Unload it and remove its folder."""
        try:
            await self._client.tell("/v1/unload_lora_adapter", {"lora_name": name}, again=True)
        except Refused as error:
            if "cannot be found" not in str(error):
                raise
        finally:
            self._forget(name)

    async def score(self, asks: Sequence[Ask], *, apart: bool = False) -> list[Reply]:
        """A request for each adapter, all of them at once; those of the model alone go before.

        On a CPU, 0.32 gives a prompt without an adapter that meets others in a batch the answers of one of theirs.
        """
        if self._base is None:
            await self._base_model()
        requests = list(_requests(asks))
        found = dict[tuple[str | None, Prompt], dict[int, float]]()
        for alone in (True, False):
            some = [one for one in requests if (one.adapter is None) == alone]
            answers = await asyncio.gather(*(self._answers(one, apart) for one in some))
            for request, tables in zip(some, answers, strict=True):
                for prompt, table in zip(request.prompts, tables, strict=True):
                    found.setdefault((request.adapter, prompt), {}).update(table)
        replies = [_reply(ask, found) for ask in asks]
        return [replies[0]._replace(cached=await self._newly_cached()), *replies[1:]] if replies else []

    async def rebase(self, tensors: Mapping[str, Tensor], mark: str) -> None:
        """It takes no weights over HTTP."""
        raise Refused(f"server {self.url} takes no weights ({len(tensors)} tensors of {mark!r}); use --engine sglang")

    async def restore(self) -> None:
        """It has the model's own weights always."""

    async def close(self) -> None:
        """Give back its connections, and remove what was written for it."""
        self._files.close()
        await self._client.close()

    def request_for(self, name: str, prompt: str | list[int]) -> tuple[str, dict[str, Any]]:
        """An adapter is asked for as a model."""
        return "/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5}

    async def _models(self) -> list[Mapping[str, Any]]:
        told = await self._client.get("/v1/models")
        found = told.get("data") if isinstance(told, Mapping) else None
        return [one for one in found if isinstance(one, Mapping) and "id" in one] if isinstance(found, list) else []

    async def _base_model(self) -> Mapping[str, Any]:
        bases = [one for one in await self._models() if not one.get("parent")]
        if not bases:
            raise Refused(f"server {self.url} lists no model at /v1/models; expected the one that it serves")
        self._base = str(bases[0]["id"])
        return bases[0]

    async def _answers(self, request: _Request, apart: bool) -> list[dict[int, float]]:
        """After each prompt of a request, the log-probability of each token that was asked for."""
        held = self._held.get(request.adapter or "")
        salt = secrets.token_hex(8) if apart else held.salt if held else None
        body = {
            "model": request.adapter or self._base,
            "prompt": [list(prompt) for prompt in request.prompts],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 1,
            "logprob_token_ids": list(request.words),
            "return_tokens_as_token_ids": True,
            **({"cache_salt": salt} if salt else {}),
        }
        try:
            told = await self._client.post("/v1/completions", body, again=True)
        except Refused as error:
            if request.adapter and "does not exist" in str(error):
                raise NotLoaded(str(error)) from None
            if "EngineCore encountered an issue" in str(error):  # it says so once, and then ends
                raise Away(str(error)) from None
            raise
        try:
            return _tables(told["choices"], request)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise Refused(
                f"server {self.url} answers /v1/completions in a form that noback does not know "
                f"({type(error).__name__}: {shown(str(error))}); versions {self.tested[0]} to below {self.tested[1]} "
                "were tested"
            ) from None

    async def _newly_cached(self) -> int:
        """Tokens found in the prefix cache since the last look; a reply's own count is that of its last prompt only."""
        found = _hits(await self._client.text("/metrics"))
        newly, self._hits = found - self._hits, found
        return max(int(newly), 0)

    def _forget(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            self._files.remove(held.path)

    def _why_not(self, said: str) -> str:
        """Why an adapter was not loaded, with what would change it."""
        largest = re.search(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", said)
        if largest:
            return (
                f"server {self.url} takes adapters up to rank {largest[2]} and the run's has rank {largest[1]}; start "
                f"it with {self.rank_flag} {served_rank(int(largest[1]))}, or lower --set adapter.rank"
            )
        if "LoRA is not enabled" in said:
            return f"server {self.url} takes no adapters; start it with --enable-lora"
        if "/v1/load_lora_adapter (404)" in said and "No adapter found" not in said:
            return f"server {self.url} takes no adapters while it runs; start it with {RUNTIME} in its environment"
        if "No adapter found" in said:
            return (
                f"server {self.url} does not see the folder in which noback writes adapters; name one that both see "
                "under the same path, on one machine or a shared disk: --folder DIR"
            )
        if "expected target modules" in said:
            return (
                f"server {self.url} takes no adapters of some of the run's linears ({_targets(said)}); start it "
                "without --lora-target-modules, or name others: --set adapter.targets=..."
            )
        return said


def _targets(said: str) -> str:
    """What the server says of linears that an adapter may have, without the list of those that it had."""
    found = re.search(r"expected target modules in \{?(.*?)\}? but received", said)
    return f"it takes {found[1]}" if found else said


def served_rank(rank: int) -> int:
    """The least rank that vLLM's flag can be set to and that holds another."""
    return next((one for one in (1, 8, 16, 32, 64, 128, 256, 320, 512) if one >= rank), rank)


def _requests(asks: Sequence[Ask]) -> Iterator[_Request]:
    """The requests that answer some asks: of one adapter each, with no more tokens than a request may ask for."""
    growing = dict[str | None, _Request]()
    for ask in asks:
        for prompt, words in _rows(ask):
            last = growing.get(ask.adapter)
            if last is None or not last.takes(words):
                if last is not None:
                    yield last
                last = growing[ask.adapter] = _Request(ask.adapter)
            last.add(prompt, words)
    yield from growing.values()


def _rows(ask: Ask) -> Iterator[tuple[Prompt, Prompt]]:
    """The prompts that an ask needs, and the tokens wanted after each.

    A continuation is one prompt for each of its tokens, whose beginnings the prefix cache holds: log-probabilities of
    a prompt's own tokens end the engine where an adapter is used (0.32 on a CPU), and skip the cache everywhere.
    """
    if not ask.continuation:
        for first in range(0, len(ask.words), MOST_WORDS):
            yield ask.prompt, ask.words[first : first + MOST_WORDS]
    for index, token in enumerate(ask.continuation):
        yield (*ask.prompt, *ask.continuation[:index]), (token,)


def _reply(ask: Ask, found: Mapping[tuple[str | None, Prompt], Mapping[int, float]]) -> Reply:
    numbers = [found[ask.adapter, prompt][word] for prompt, words in _rows(ask) for word in words]
    tokens = len(ask.prompt) + max(len(ask.continuation) - 1, 0)
    return Reply(numbers, tokens, 0)


def _tables(choices: Any, request: _Request) -> list[dict[int, float]]:
    """What a reply says of each prompt, in the order in which they were asked."""
    if [choice["index"] for choice in choices] != list(range(len(request.prompts))):
        raise ValueError(f"{len(choices)} answers to {len(request.prompts)} prompts, or out of order")
    tables = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
    return [{word: _number(table[f"token_id:{word}"]) for word in request.words} for table in tables]


def _number(told: Any) -> float:
    """A log-probability; one above zero is none (a server with --logprobs-mode other than raw_logprobs)."""
    number = float(told)
    if number > 0:
        raise ValueError(f"log-probability {number}; start the server with --logprobs-mode raw_logprobs")
    return number if number > _LOWEST else float("-inf")


def _limits(metrics: str) -> Limits | None:
    """What adapters it takes, as far as its metrics say; where it takes none, they do not speak of them."""
    if "# TYPE vllm:lora_requests_info" not in metrics:
        return None
    slots = re.search(r'^vllm:lora_requests_info\{.*max_lora="(\d+)"', metrics, re.MULTILINE)
    return Limits(None, int(slots[1]) if slots else 1, None)


def _replicas(metrics: str) -> int:
    return len(set(re.findall(r'^vllm:prefix_cache_queries_total\{.*?engine="(\d+)"', metrics, re.MULTILINE))) or 1


def _hits(metrics: str) -> float:
    found = re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))

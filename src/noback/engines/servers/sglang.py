"""SGLang over HTTP: adapters as tensors, one request for any mix of them.

Never its `/v1/score`: that ignores adapters and answers with the base model's scores.
"""

from __future__ import annotations

import base64
import pickle
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from noback.engines.servers.client import Client
from noback.engines.servers.server import About, Ask, Copy, Limits, NotLoaded, Refused, Reply
from noback.errors import shown

_TOLD_WITHIN = 30.0  # seconds for what a server says of itself; scores may take longer
_PIECE = 2**28  # bytes of weights in a message
_UNKNOWN = ("never been loaded", "does not exist", "is not registered")  # what it says of an adapter it does not hold


class Sglang:
    """One SGLang server; its calls are those of 0.5.22 and 0.5.23."""

    kind: ClassVar[str] = "sglang"
    tested: ClassVar[tuple[str, str]] = ("0.5.22", "0.5.24")
    lora_flag: ClassVar[str] = "--enable-lora"
    rank_flag: ClassVar[str] = "--max-lora-rank"
    targets_flag: ClassVar[str | None] = "--lora-target-modules"
    slots_flag: ClassVar[str] = "--max-loras-per-batch"
    cache_off_flag: ClassVar[str] = "--disable-radix-cache"
    takes_weights: ClassVar[bool] = True
    reads_files: ClassVar[bool] = False

    def __init__(self, client: Client) -> None:
        self._client, self.url = client, client.url
        self._ranks = 1
        self._files = ""  # of the model, as the server sees them

    async def about(self) -> About:
        """From `/server_info`: of its many entries, those that decide what it can do for a run."""
        try:
            told = await self._client.get("/server_info", timeout=_TOLD_WITHIN)
        except Refused as error:
            raise Refused(f"{self.url} is no SGLang server that answers, see --engine and --url: {error}") from None
        if not isinstance(told, Mapping) or not isinstance(told.get("version"), str):
            raise Refused(f"{self.url} is no SGLang server: its /server_info holds no version; see --engine and --url")
        self._ranks = int(told.get("tp_size") or 1)
        slots = int(told.get("max_loras_per_batch") or 1)
        targets = told.get("lora_target_modules")
        named = None if not targets or "all" in targets else frozenset(targets)
        rank = told.get("max_lora_rank")
        held = await self._client.get("/model_info", timeout=_TOLD_WITHIN)  # what is known since it was started
        self._files = str(told.get("model_path", ""))
        return About(
            kind=self.kind,
            version=told["version"],
            model=str(told.get("model_path", "")),
            dtype=str(told.get("dtype", "")),
            ranks=self._ranks,
            replicas=int(told.get("dp_size") or 1),
            context=told.get("context_length"),
            lora=Limits(rank, slots, named) if told.get("enable_lora") else None,
            weights=str(held.get("weight_version", "")) if isinstance(held, Mapping) else "",
        )

    async def loaded(self) -> list[str]:
        """Adapters stand in the list of models with the model as their parent."""
        told = await self._client.get("/v1/models", timeout=_TOLD_WITHIN)
        return [str(one["id"]) for one in _list_of(told, "data") if one.get("parent")]

    async def publish(self, name: str, copy: Copy) -> None:
        """One payload for each rank of tensor parallelism: too few would end the server."""
        body = {
            "lora_name": name,
            "config_dict": dict(copy.config),
            "serialized_named_tensors": [_payload(dict(copy.tensors))] * self._ranks,
        }
        # Not again: a name that is loaded already is refused, and one that may be there is not known to be whole.
        await self._client.post("/load_lora_adapter_from_tensors", body, again=False)

    async def retire(self, name: str) -> None:
        """It waits until no request uses the adapter."""
        try:
            await self._client.post("/unload_lora_adapter", {"lora_name": name}, again=True)
        except Refused as error:
            if not _is_unknown(error):
                raise

    async def score(self, asks: Sequence[Ask], *, apart: bool = False) -> list[Reply]:
        """One request: prompts of all adapters go into the same batches."""
        body = {
            "input_ids": [[*ask.prompt, *ask.continuation] for ask in asks],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": [len(ask.prompt) - 1 if ask.continuation else -1 for ask in asks],
            "token_ids_logprob": [list(ask.words) or [ask.continuation[0]] for ask in asks],  # each must have some
            "lora_path": [ask.adapter for ask in asks],
            **({"extra_key": secrets.token_hex(8)} if apart else {}),  # a part of the cache's key
        }
        try:
            told = await self._client.post("/generate", body, again=True)
        except Refused as error:
            if _is_unknown(error):
                raise NotLoaded(str(error)) from None
            raise
        try:
            return [_reply(ask, one["meta_info"]) for ask, one in zip(asks, told, strict=True)]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise Refused(
                f"server {self.url} answers /generate in a form that noback does not know ({type(error).__name__}: "
                f"{shown(str(error))}); versions {self.tested[0]} to below {self.tested[1]} were tested"
            ) from None

    async def rebase(self, tensors: Mapping[str, Tensor], mark: str) -> None:
        """In a session, some tensors at a time; its cache goes, and its adapters stay."""
        try:
            await self._client.post("/begin_weight_update", {}, again=False)
        except Refused:  # a session that was cut off is still open
            await self._client.post("/end_weight_update", {}, again=False)
            await self._client.post("/begin_weight_update", {}, again=False)
        for some in _pieces(tensors):
            body = {"serialized_named_tensors": [_payload(some)] * self._ranks, "weight_version": mark}
            await self._client.post("/update_weights_from_tensor", body, again=True)
        await self._client.post("/end_weight_update", {}, again=False)

    async def restore(self) -> None:
        """From the files that it was started with."""
        body = {"model_path": self._files, "weight_version": "default"}
        await self._client.post("/update_weights_from_disk", body, again=True)

    async def close(self) -> None:
        """Give back its connections."""
        await self._client.close()

    def request_for(self, name: str, prompt: str | list[int]) -> tuple[str, dict[str, Any]]:
        """Its own form names an adapter by `lora_path`, also one that came as tensors."""
        sampling = {"max_new_tokens": 1, "temperature": 0}
        asked = {"text" if isinstance(prompt, str) else "input_ids": prompt}
        return "/generate", {**asked, "lora_path": name, "sampling_params": sampling, "return_logprob": True}


def _payload(tensors: Any) -> str:
    """Tensors with their names in the form that SGLang takes; it is never read here."""
    return base64.b64encode(pickle.dumps(tensors)).decode()


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[list[tuple[str, Tensor]]]:
    """The tensors in some messages of a bounded size."""
    some, size = list[tuple[str, Tensor]](), 0
    for name, tensor in tensors.items():
        if some and size + tensor.nbytes > _PIECE:
            yield some
            some, size = [], 0
        some.append((name, tensor))
        size += tensor.nbytes
    yield some


def _reply(ask: Ask, told: Mapping[str, Any]) -> Reply:
    if ask.continuation:
        found = told["input_token_logprobs"][-len(ask.continuation) :]
        expected = list(ask.continuation)
    else:
        found, expected = told["output_token_ids_logprobs"][0], list(ask.words)
    if [one[1] for one in found] != expected:
        raise ValueError(f"log-probabilities of tokens {[one[1] for one in found]}, asked for {expected}")
    numbers = [float("nan") if one[0] is None else float(one[0]) for one in found]
    return Reply(numbers, int(told["prompt_tokens"]), int(told["cached_tokens"]))


def _is_unknown(error: Refused) -> bool:
    return any(word in str(error) for word in _UNKNOWN)


def _list_of(told: Any, key: str) -> list[Mapping[str, Any]]:
    found = told.get(key) if isinstance(told, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

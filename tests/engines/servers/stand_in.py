"""A server in this process, by transformers with each adapter merged: slow, and right."""

from __future__ import annotations

import copy

import torch

from noback.engines.servers.server import About, Away, Limits, NotLoaded, Refused, Reply


class StandIn:
    """Keeps to the protocol of a server; tests break it."""

    kind = "sglang"
    tested = ("0.5.22", "0.6")
    lora_flag, rank_flag, targets_flag = "--enable-lora", "--max-lora-rank", "--lora-target-modules"
    slots_flag, cache_off_flag = "--max-loras-per-batch", "--disable-radix-cache"
    reads_files, takes_weights = False, True

    def __init__(self, base, url: str = "http://stand-in", **said) -> None:
        self.url, self._model = url, base
        self.said = About(**{
            "kind": self.kind, "version": "0.5.23", "model": "here", "dtype": "float32", "ranks": 1, "replicas": 1,
            "context": 512, "lora": Limits(64, 8, None), **said,
        })  # fmt: skip
        self.adapters: dict[str, dict] = {}
        self.names: list[str] = []  # that were ever published
        self.asked: list[list] = []  # the asks of each request
        self._own = {name: tensor.clone() for name, tensor in base.named_parameters()}
        self.bases: list[str] = []  # what weights that were sent are called
        self.deaf = False  # adapters are taken and do not count
        self.away = 0  # so many calls fail

    async def about(self):
        self._call()
        return self.said

    async def loaded(self):
        self._call()
        return list(self.adapters)

    async def publish(self, name, copy):
        self._call()
        if name in self.names:
            raise Refused(f"{name} was loaded before")
        self.names.append(name)
        self.adapters[name] = dict(copy.tensors) | {"scale": copy.config["lora_alpha"] / copy.config["r"]}

    async def retire(self, name):
        self._call()
        self.adapters.pop(name, None)

    async def score(self, asks, *, apart=False):
        self._call()
        self.apart = apart
        self.asked.append(list(asks))
        return [self._reply(ask) for ask in asks]

    async def rebase(self, tensors, mark):
        self._call()
        self.bases.append(mark)
        self._model = copy.deepcopy(self._model)
        self._model.load_state_dict(dict(tensors), strict=False)

    async def restore(self):
        self._call()
        self._model = copy.deepcopy(self._model)
        self._model.load_state_dict(self._own, strict=False)
        self.bases.append("own")

    async def close(self):
        """Nothing is open."""

    def request_for(self, name, prompt):
        return "/ask", {"adapter": name, "prompt": prompt}

    def dies(self, calls: int = 2):
        """It is gone for so many calls, and comes back without any adapter."""
        self.away, self.adapters = calls, {}
        self._model = copy.deepcopy(self._model)
        self._model.load_state_dict(self._own, strict=False)

    def _call(self):
        if self.away:
            self.away -= 1
            raise Away(f"server {self.url} cannot be reached")

    @torch.inference_mode()
    def _reply(self, ask):
        if ask.adapter is not None and ask.adapter not in self.adapters:
            raise NotLoaded(f"{ask.adapter} is not loaded")
        model = self._merged(self.adapters[ask.adapter]) if ask.adapter and not self.deaf else self._model
        ids = [*ask.prompt, *ask.continuation]
        found = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        if ask.continuation:
            places = range(len(ask.prompt) - 1, len(ids) - 1)
            numbers = [float(found[place, token]) for place, token in zip(places, ask.continuation, strict=True)]
        else:
            numbers = found[-1][list(ask.words)].tolist()
        return Reply(numbers, len(ids), 0)

    def _merged(self, tensors):
        model = copy.deepcopy(self._model)
        for name, module in model.named_modules():
            key = f"base_model.model.{name}.lora_"
            if f"{key}A.weight" in tensors:
                module.weight += tensors["scale"] * (tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"])
        return model

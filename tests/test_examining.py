"""noback engine check: each line can fail, and says what to change."""

from __future__ import annotations

import json

import pytest

from noback.engines.servers.options import ServerEngine
from noback.engines.servers.server import Limits, Reply
from noback.examining.slopes import AtEps, recommended
from tests.conftest import tiny_causal
from tests.engines.servers.stand_in import StandIn

DIGITS = 2**10  # of a rounded log-probability, so coarse that its slopes at the usual eps are noise
ADDRESS = "http://127.0.0.1:1"
FLAGS = ["--set", "adapter.rank=2", "--set", "adapter.targets=q_proj,v_proj", "--batch", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A tiny causal model, as a server and this process find it."""
    place = tmp_path_factory.mktemp("served")
    tiny_causal("llama").save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


class Good(StandIn):
    """Has a prefix cache."""

    async def score(self, asks, *, apart=False):
        seen = [ask.prompt for some in self.asked for ask in some]
        replies = await super().score(asks, apart=apart)
        return [reply._replace(cached=128 * any(ask.prompt[:128] == one[:128] for one in seen))
                for ask, reply in zip(asks, replies, strict=True)]  # fmt: skip


@pytest.fixture
def check(noback, folder, monkeypatch):
    """Examines a stand-in as the command does; gives the exit code, the lines by name and stderr."""

    def call(*flags, kind=Good, **said):
        server = kind(tiny_causal("llama"), ADDRESS, **said)
        monkeypatch.setattr(ServerEngine, "servers", lambda _: [server])
        code, out, err = noback("engine", "check", ADDRESS, "--model", folder, *FLAGS, *flags, "--json")
        table = json.loads(out)
        assert table["passed"] == (code == 0) == (not table["failed"])
        assert not server.adapters, "an adapter was left behind"
        return code, {line["name"]: line for line in table["lines"]}, err

    return call


def test_a_good_server_passes_every_line(check):
    code, lines, _ = check()
    assert code == 0, lines
    assert {"version", "adapters", "rank", "targets", "slots", "canary", "agreement", "slopes", "eps", "local",
            "throughput", "prefix"} <= {*lines}  # fmt: skip
    assert lines["local"]["figures"]["difference"] < 1e-3
    assert lines["eps"]["figures"]["recommended"] == 1e-3


@pytest.mark.parametrize(
    ("said", "line", "flag"),
    [
        ({"version": "9.0.0"}, "version", "use one of those"),
        ({"replicas": 2}, "replicas", "start several servers"),
        ({"lora": None}, "adapters", "--enable-lora"),
        ({"lora": Limits(1, 8, None)}, "rank", "--max-lora-rank 2"),
        ({"lora": Limits(8, 8, frozenset({"q_proj"}))}, "targets", "--lora-target-modules q_proj v_proj"),
        ({"context": 4}, "context", "longer context"),
    ],
)
def test_a_server_that_lacks_something_fails_in_that_line_with_the_flag(check, said, line, flag):
    code, lines, err = check(**said)
    assert code == 1
    assert [name for name, one in lines.items() if one["passed"] is False] == [line]
    assert flag in lines[line]["found"]
    assert err.count("\n") == 1
    assert line in err


def test_few_slots_pass_with_the_flag_that_makes_it_faster(check):
    _, lines, _ = check("--directions", "2", lora=Limits(8, 2, None))
    assert lines["slots"]["passed"]
    assert "--max-loras-per-batch 4" in lines["slots"]["to_do"]


class Deaf(StandIn):
    """Takes adapters and answers with the base model's scores."""

    def __init__(self, *words, **said):
        super().__init__(*words, **said)
        self.deaf = True


class Rounding(StandIn):
    """Rounds its log-probabilities as a type of few digits does."""

    async def score(self, asks, *, apart=False):
        return [Reply([round(one * DIGITS) / DIGITS for one in reply.log_probabilities], reply.tokens, 0)
                for reply in await super().score(asks, apart=apart)]  # fmt: skip


class Other(StandIn):
    """Serves another base model than it says."""

    def __init__(self, model, *words, **said):
        import copy

        import torch

        other = copy.deepcopy(model)
        with torch.no_grad():
            for tensor in other.parameters():
                tensor.mul_(1.2)
        super().__init__(other, *words, **said)


def test_scores_of_the_base_model_fail_the_canary(check):
    code, lines, _ = check(kind=Deaf)
    assert code == 1
    assert "base model's scores" in lines["canary"]["found"]
    assert "slopes" not in lines  # nothing could be measured


def test_another_base_model_fails_the_agreement(check):
    code, lines, _ = check(kind=Other)
    assert (code, lines["agreement"]["passed"]) == (1, False)
    assert "serve the base model" in lines["agreement"]["to_do"]


def test_rounding_that_drowns_slopes_fails_with_a_larger_eps(check):
    code, lines, _ = check(kind=Rounding)
    assert (code, lines["slopes"]["passed"]) == (1, False)
    assert lines["eps"]["figures"]["recommended"] > 1e-3
    assert f"--eps {lines['eps']['figures']['recommended']:g}" in lines["slopes"]["to_do"]


def test_a_cache_that_is_off_fails_with_the_flag_that_turned_it_off(check):
    _, lines, _ = check(kind=StandIn)
    assert not lines["prefix"]["passed"]  # a stand-in has no cache
    assert "--disable-radix-cache" in lines["prefix"]["to_do"]


def test_the_runs_own_eps_is_kept_where_it_is_quiet():
    quiet, loud, bent = AtEps(1e-2, [1.0, -1.0], 0.01), AtEps(1e-4, [1.0, -1.0], 0.6), AtEps(1e-1, [-1.0, 1.0], 0.0)
    near = AtEps(1e-3, [1.0, -1.0], 0.015)
    assert recommended([loud, near, quiet], 1e-2) == quiet
    assert recommended([loud, near, quiet], 1e-4) == near
    assert recommended([loud], 1e-4) is None
    assert recommended([bent, loud], 1e-4) == bent


def test_an_address_where_nothing_listens_is_one_sentence(noback):
    code, out, err = noback("engine", "check", ADDRESS)
    assert (code, out) == (2, "")
    assert "cannot be reached" in err
    assert err.count("\n") == 1


def test_an_address_is_named_once(noback):
    code, _, err = noback("engine", "check", ADDRESS, "--url", ADDRESS)
    assert code == 2
    assert "name it once" in err

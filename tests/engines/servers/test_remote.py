"""The engine over servers: scores, names, what is retired, and servers that go away and come back."""

from __future__ import annotations

import copy
import gc
import itertools
from dataclasses import replace

import pytest
import torch

from noback import Lora
from noback.engines import Local
from noback.engines.servers.copies import AdapterCopies
from noback.engines.servers.remote import Names, Remote
from noback.engines.servers.server import Away, Limits
from noback.errors import InputError
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import spec_of
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import NEGATIVE, POSITIVE, tiny_causal
from tests.engines.servers.stand_in import StandIn

POINTS = [Move((Term(3, 0.05),)), Move((Term(3, -0.05),)), UNPERTURBED]
WORDS = {"0": "terrible", "1": "great"}


class World:
    """A tiny model with an adapter here, and stand-ins of servers that hold the model without it."""

    def __init__(self, tokenizer, words=WORDS, servers: int = 1, **options) -> None:
        spec = spec_of(
            {"name": "small", "prompt": "{sentence}\nIt was", "words": words, "sentences": ["sentence"]}, "s"
        )
        self.task = Task(spec, tokenizer, 160)
        examples = [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
        self.task.add("train", examples)
        base = tiny_causal("llama")
        self.model, adapter = copy.deepcopy(base), Lora(rank=2)
        self.weights = Weights(adapter.attach(self.model, (), 0))
        self.weights.advance([Move((Term(9, 0.3),))])  # B is zero at the start
        self.servers = [StandIn(base, f"http://stand-in-{index}") for index in range(servers)]
        self.said: list[str] = []
        self.engine = Remote(
            self.servers, self.weights, self.task.word_ids,
            AdapterCopies(self.weights, lambda tensors: adapter.published(self.model, tensors)), model="here",
            mark="cafe", say=self.said.append, **options,
        )  # fmt: skip
        self.batch = self.task.batch(0, 8, 0)

    def expected(self, points=POINTS):
        return Local(self.model, self.weights, self.task.word_ids).score(self.batch, points)


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        change = (ours - theirs) - (ours - theirs)[:, :1]  # a constant of each example counts for nothing
        assert change.abs().max() < 2e-5


def test_label_words_score_as_on_the_local_engine(tokenizer):
    world = World(tokenizer)
    found = world.engine.score(world.batch, POINTS)
    assert (found[0] - found[1]).abs().max() > 1e-3
    close(found, world.expected())


def test_continuations_score_as_on_the_local_engine(tokenizer):
    world = World(tokenizer, words={"0": "not worth it", "1": "worth it"})
    assert world.batch.candidates is not None
    for ours, theirs in zip(world.engine.score(world.batch, POINTS), world.expected(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_a_step_leaves_only_the_standing_weights_published_and_no_name_is_used_twice(tokenizer):
    world = World(tokenizer)
    for _ in range(2):
        world.engine.score(world.batch, POINTS)
    (server,) = world.servers
    assert len(server.adapters) == 1
    assert len(server.names) == len(set(server.names)) == 1 + 2 * 2 + 1  # the canary, two points twice, the weights
    world.weights.advance([Move((Term(4, 0.1),))])
    close(world.engine.score(world.batch, POINTS), world.expected())
    assert len(server.adapters) == 1


def test_all_points_go_out_in_one_request_with_equal_beginnings_side_by_side(tokenizer):
    world = World(tokenizer)
    world.engine.score(world.batch, POINTS)
    asks = world.servers[0].asked[-1]
    assert len(asks) == 3 * 8
    keys = [(ask.adapter, ask.prompt) for ask in asks]
    for adapter in {ask.adapter for ask in asks}:
        of_one = [prompt for name, prompt in keys if name == adapter]
        assert of_one == sorted(of_one)
    assert len([1 for one, other in itertools.pairwise(asks) if one.adapter != other.adapter]) == 2


def test_a_server_that_dies_is_waited_for_and_what_it_lost_is_published_again(tokenizer):
    world = World(tokenizer)
    undisturbed = world.engine.score(world.batch, POINTS)
    world.servers[0].dies()
    found = world.engine.score(world.batch, POINTS)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, undisturbed, strict=True))
    assert any("is back" in line for line in world.said)


def test_a_server_that_lost_an_adapter_is_given_it_again(tokenizer):
    world = World(tokenizer)
    world.engine.score(world.batch, [UNPERTURBED])
    world.servers[0].adapters.clear()
    close(world.engine.score(world.batch, [UNPERTURBED]), world.expected([UNPERTURBED]))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"lora": None}, "takes no adapters; start it with --enable-lora"),
        ({"lora": Limits(1, 8, None)}, "rank 1 and the run's has rank 2; start it with --max-lora-rank 2"),
        ({"lora": Limits(8, 8, frozenset({"q_proj"}))}, "start it with --lora-target-modules"),
        ({"version": "0.4.9"}, "tested with 0.5.22 to below 0.6"),
        ({"version": "0.6.0"}, "tested with 0.5.22 to below 0.6"),
        ({"replicas": 2}, "--url A,B"),
    ],
)
def test_a_server_that_cannot_do_the_work_is_refused_with_the_flag_to_change(tokenizer, said, sentence):
    world = World(tokenizer)
    server = world.servers[0]
    server.said = type(server.said)(
        **{name: said.get(name, getattr(server.said, name)) for name in server.said.__slots__}
    )
    with pytest.raises(InputError, match=sentence):
        world.engine.ready()
    assert not server.adapters


def test_a_server_that_answers_with_the_base_models_scores_is_found_out(tokenizer):
    world = World(tokenizer)
    world.servers[0].deaf = True
    with pytest.raises(InputError, match="canary"):
        world.engine.ready()
    assert not world.servers[0].adapters


def test_several_servers_share_a_batch_and_give_the_scores_of_one(tokenizer):
    alone, shared = World(tokenizer, micro_batch=2), World(tokenizer, servers=2, micro_batch=2)
    found = shared.engine.score(shared.batch, POINTS)
    assert all(
        torch.equal(one, other) for one, other in zip(found, alone.engine.score(alone.batch, POINTS), strict=True)
    )
    assert sum(len(server.asked) - 1 for server in shared.servers) == 4  # requests; the canary's is another


@pytest.mark.parametrize("servers", [1, 2])
def test_where_several_share_the_work_no_request_uses_the_cache_of_another(tokenizer, servers):
    """Who has computed a prompt's beginning before rounds it otherwise, and who had which part is chance."""
    world = World(tokenizer, servers=servers, micro_batch=2)
    world.engine.score(world.batch, POINTS)
    assert {server.apart for server in world.servers} == {servers > 1}


def test_a_dead_servers_share_goes_to_the_others_without_waiting_for_it(tokenizer):
    world = World(tokenizer, servers=2, micro_batch=2, wait=0.0)
    undisturbed = world.engine.score(world.batch, POINTS)
    world.servers[0].dies(10**6)
    for _ in range(2):
        found = world.engine.score(world.batch, POINTS)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, undisturbed, strict=True))


def test_servers_that_stay_away_end_the_run_with_a_sentence(tokenizer):
    world = World(tokenizer, wait=0.0)
    world.engine.ready()
    world.servers[0].dies(10**6)
    with pytest.raises(Away, match="nothing is lost"):
        world.engine.score(world.batch, POINTS)


def test_a_server_that_comes_back_as_another_is_refused(tokenizer):
    world = World(tokenizer)
    world.engine.ready()
    world.servers[0].said = replace(world.servers[0].said, dtype="bfloat16")
    world.servers[0].dies()
    with pytest.raises(InputError, match="came back with"):
        world.engine.score(world.batch, POINTS)


def test_only_adapters_of_processes_that_ended_are_left_over():
    names = Names("cafe")
    mine = names().split("-")
    ended = ["noback", "beef", mine[2], "4194305", "0a", "3"]  # beyond the largest number of a process
    assert names.is_left_over("-".join(ended))
    assert names.is_left_over("-".join(["noback", "cafe", "elsewhere", *ended[3:]]))
    assert not names.is_left_over("-".join(["noback", "beef", "elsewhere", *ended[3:]]))
    assert not names.is_left_over("-".join(mine))
    assert not names.is_left_over("-".join([*mine[:4], "0a", "3"]))  # this process's, by another engine
    assert not names.is_left_over("someone-elses")
    assert len({names() for _ in range(9)}) == 9


def test_what_a_killed_process_left_is_retired_at_the_start(tokenizer):
    world = World(tokenizer)
    left = "-".join(["noback", "cafe", "elsewhere", "1", "0a", "3"])
    world.servers[0].adapters |= {left: {}, "someone-elses": {}}
    world.engine.ready()
    assert list(world.servers[0].adapters) == ["someone-elses"]


def test_an_engine_that_is_used_no_more_leaves_nothing_on_its_servers(tokenizer):
    world = World(tokenizer)
    world.engine.score(world.batch, [UNPERTURBED])
    (server,) = world.servers
    assert server.adapters
    world.engine = None
    gc.collect()
    assert not server.adapters


def test_an_engine_that_is_closed_leaves_nothing_on_its_servers_though_it_is_still_held(tokenizer):
    world = World(tokenizer)
    world.engine.close()  # one that asked nothing has nothing to leave
    world.engine.score(world.batch, [UNPERTURBED])
    (server,) = world.servers
    assert server.adapters
    world.engine.close()
    world.engine.close()
    assert not server.adapters


def test_an_engine_whose_end_is_seen_in_the_thread_of_the_requests_leaves_nothing_either(tokenizer):
    world = World(tokenizer)
    world.engine.score(world.batch, [UNPERTURBED])
    (server,), background, held = world.servers, world.engine._background, [world.engine]
    world.engine = None

    async def forget():
        held.clear()
        gc.collect()

    background.run(forget())
    background._thread.join(timeout=30)
    assert not server.adapters

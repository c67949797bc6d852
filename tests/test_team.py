"""Work that is shared out to threads."""

import threading

import pytest
import torch

from noback.directions import team
from noback.values import Move, Term
from tests.conftest import tiny_model, weights_of

WAYS = {"torch's": team.gathering(), "our own": team.own_threads}


@pytest.fixture(params=WAYS)
def gather(request, monkeypatch):
    monkeypatch.setattr(team, "gathering", lambda: WAYS[request.param])


@pytest.mark.usefixtures("gather")
def test_every_chunk_is_done_once_and_by_several_threads():
    done, meet = [], threading.Barrier(2, timeout=20)

    def kernel(number: int) -> None:
        if number < 2:
            meet.wait()  # each of the first two waits for the other
        done.append(number)

    team.share_out(2, kernel, [(number,) for number in range(100)])
    assert sorted(done) == list(range(100))


@pytest.mark.usefixtures("gather")
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_kernel_raises_is_raised(threads):
    def kernel() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team.share_out(threads, kernel, [(), ()])


def test_either_way_of_having_threads_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found = []
    for way in WAYS.values():
        monkeypatch.setattr(team, "gathering", lambda way=way: way)
        weights, move = weights_of(tiny_model("roberta")), Move((Term(5, 1e-2),))
        parts = weights.perturbed_together(list(weights.names), [move])
        weights.advance([move])
        found.append((parts, weights.digest()))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(found[0][0][name], tensor) for name, tensor in found[1][0].items())

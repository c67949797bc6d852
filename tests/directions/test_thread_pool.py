"""Work that is shared out to threads."""

import os
import threading

import pytest
import torch

from noback.directions.thread_pool import share_out
from noback.values import Move, Term
from tests.conftest import tiny_model, weights_of


def test_every_chunk_is_done_once_and_by_several_threads():
    done, meet = [], threading.Barrier(2, timeout=20)

    def kernel(number: int) -> None:
        if number < 2:
            meet.wait()  # each of the first two waits for the other
        done.append(number)

    share_out(2, kernel, [(number,) for number in range(100)])
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_kernel_raises_is_raised_when_no_thread_works_any_more(threads):
    working = []

    def kernel(number: int) -> None:
        working.append(number)
        if number == 0:
            raise KeyboardInterrupt
        working.append(-number)

    with pytest.raises(KeyboardInterrupt):
        share_out(threads, kernel, [(number,) for number in range(50)])
    assert sum(working) == 0  # what was begun is ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    share_out(2, lambda: None, [(), ()])
    child = os.fork()
    if child == 0:
        meet = threading.Barrier(2, timeout=20)
        share_out(2, lambda: meet.wait() and None, [(), ()])
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        weights, move = weights_of(tiny_model("roberta")), Move((Term(5, 1e-2),))
        parts = weights.perturbed_together(list(weights.names), [move])
        weights.advance([move])
        found.append((parts, weights.digest()))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(found[0][0][name], tensor) for name, tensor in found[1][0].items())

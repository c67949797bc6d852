"""Ranks that torchrun's agents start again: they meet those that are alive, and go on with their run."""

import dataclasses
import signal
import threading

import pytest
import torch.distributed as dist

from noback import LocalEngine, distributed, train
from noback.distributed import _met_now
from tests.test_distributed import _records, config, killed_after, started  # noqa: F401 (a fixture)


def agents_start(size, config, out, store, counts):  # noqa: F811
    """Ranks as torchrun's agents start them: with the store that these keep, each with its count of restarts."""
    told = [
        {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "one", "TORCHELASTIC_RESTART_COUNT": str(count)}
        for count in counts
    ]
    return started(size, config, out, environment=told, port=store.port, trains=True)


def test_agents_whose_ranks_begin_again_need_not_count_alike(config, tmp_path):  # noqa: F811
    """Two ranks of two machines, of which one is killed; two again; then the one that is left: one run, the same bits.

    A machine counts the restarts of its own ranks, and none where ranks begin again as a machine comes or goes.
    """
    out, store = tmp_path / "run", dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for victim, records in ((1, 2), (0, 5)):
        told, running = agents_start(2, config, out, store, [0, victim])
        killed_after(running, out, records, victim)
        assert running[victim].exitcode == -signal.SIGKILL, told.get(timeout=60)
    assert 5 <= _records(out) < config.steps
    told, (process,) = agents_start(1, config, out, store, [0])
    rank, weights, _ = told.get(timeout=60)
    process.join()
    alone = train(dataclasses.replace(config, engine=LocalEngine(micro_batch=2)), tmp_path / "alone")
    assert (rank, weights) == (0, alone.final_weights)
    assert (out / "journal").read_bytes() == (tmp_path / "alone" / "journal").read_bytes()


def met(store, size):
    """What each of some ranks learns as they meet, as threads."""
    found = {}
    ranks = [
        threading.Thread(target=lambda rank=rank: found.update({rank: _met_now(store, rank, size)}))
        for rank in range(size)
    ]
    for rank in reversed(ranks):
        rank.start()
    for rank in ranks:
        rank.join(30)
    return [found[rank] for rank in range(size)]


def test_ranks_never_meet_dead_ones(monkeypatch):
    """A store that is kept: with words of a rank that died before rank 0 answered, and of whole worlds."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.HashStore()
    store.set("here 1 of 3", "dead")
    names = set()
    for again in (False, True, True):
        said = met(store, 3)
        assert said == [(said[0][0], again)] * 3
        names.add(said[0][0])
    assert len(names) == 3


def test_a_machine_that_counts_other_restarts_is_met(monkeypatch):
    """Each agent has a count of its own; that of rank 0's says whether ranks begin again."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert {again for _, again in met(dist.HashStore(), 2)} == {True}


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(distributed, "TIMEOUT", 0.2)
    with pytest.raises(RuntimeError, match=r"rank 1, 2 did not come within 0.2 s"):
        _met_now(dist.HashStore(), 0, 3)

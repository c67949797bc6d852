"""The model that test servers serve, and a server of each kind that tests share."""

from __future__ import annotations

import shutil

import pytest

from noback.embedded import MODELS
from tests.servers.starting import lora_flags, serving

WORLDS = {
    "sglang": ("sglang", 1), "sglang-two-ranks": ("sglang", 2), "vllm": ("vllm", 1), "vllm-two-ranks": ("vllm", 2),
}  # fmt: skip
# A request without an adapter takes a slot of SGLang's, so two points and it are three; one is to spare.
SHARED = {"sglang": ["--context-length", "512", "--max-loras-per-batch", "4", "--sleep-on-idle"], "vllm": []}


def of_worlds(*names):
    """A test of some of the servers that tests share."""
    return pytest.mark.parametrize("server", [WORLDS[name] for name in names], indirect=True, ids=names)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests that start a server of their own come first: while they run no other is in memory."""
    items.sort(key=lambda item: "server" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The embedded causal model in a folder that a server may write beside."""
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(MODELS["mini-causal"], folder)
    return folder


@pytest.fixture(scope="session", params=WORLDS.values(), ids=WORLDS)
def server(request, served):
    """A server that takes adapters of rank 8 on q and v; one at a time is in memory."""
    engine, ranks = request.param
    with serving(engine, served, *lora_flags(engine, tp=ranks), *SHARED[engine]) as one:
        yield one

"""The model that test servers serve."""

from __future__ import annotations

import pytest

from tests.servers.adapters import save_two_heads


@pytest.fixture(scope="session")
def two_heads_folder(tmp_path_factory, tokenizer):
    return save_two_heads(tmp_path_factory.mktemp("served") / "model", tokenizer)

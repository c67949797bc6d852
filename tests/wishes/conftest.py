"""What the tests of runs as a set share."""

import pytest

from noback.config import RunConfig


@pytest.fixture
def small(tiny_folder, data_folder):
    """A configuration of a tiny run; options by name."""

    def make(**options):
        known = {"model": str(tiny_folder), "data": str(data_folder), "steps": 4, "batch": 4, "device": "cpu"}
        return RunConfig(**{**known, **options})

    return make

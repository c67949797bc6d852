"""The tiles of a GPU that noback does not know are timed once; any later process reads them."""

import json

import pytest

from noback.directions.tiles import TRIED, USUAL, Tile, Tiles, tiles_for

FOUND = Tiles(TRIED[2], TRIED[-1])
KEY = "A GPU, Triton 3.6, float32"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "noback" / "tiles.json"


def timed(asked):
    """The third tile advances fastest, the last one perturbs fastest."""

    def seconds(tile):
        asked.append(tile)
        place = TRIED.index(tile)
        return abs(place - 2) + 1.0, 9.0 - place

    return seconds


def refused(_tile):
    pytest.fail("nothing was to be timed")


def test_the_gpu_that_the_sweeps_were_written_on_is_not_timed(cache):
    for dtype, tiles in USUAL.items():
        assert tiles_for("NVIDIA H200", "Triton 3.6", dtype, refused) == tiles
    assert not cache.exists()


def test_another_gpu_is_timed_once_for_each_type_of_weights(cache):
    asked = []
    assert tiles_for("A GPU", "Triton 3.6", "float32", timed(asked)) == FOUND
    assert asked == list(TRIED)
    assert tiles_for("A GPU", "Triton 3.6", "float32", refused) == FOUND
    tiles_for("A GPU", "Triton 3.6", "bfloat16", timed(asked))
    tiles_for("A GPU", "Triton 3.7", "float32", timed(asked))
    tiles_for("B GPU", "Triton 3.6", "float32", timed(asked))
    assert len(asked) == 4 * len(TRIED)
    assert len(json.loads(cache.read_text())) == 4


GOOD, UNTRIED = {"vector": 2, "warps": 2}, {"vector": 3, "warps": 1}


@pytest.mark.parametrize(
    "written",
    ["no JSON", "[]"]
    + [
        json.dumps({KEY: value})
        for value in (
            5,
            {"advanced": GOOD},
            {"advanced": UNTRIED, "perturbed": GOOD},
            {"advanced": {"path": 3}, "perturbed": GOOD},
            {"advanced": GOOD, "perturbed": GOOD, "more": GOOD},
        )
    ],
)
def test_a_cache_that_makes_no_sense_is_timed_anew(cache, written):
    cache.parent.mkdir()
    cache.write_text(written)
    assert tiles_for("A GPU", "Triton 3.6", "float32", timed([])) == FOUND
    assert tiles_for("A GPU", "Triton 3.6", "float32", refused) == FOUND


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert tiles_for("A GPU", "Triton 3.6", "float32", timed([])) == FOUND


def test_a_tile_says_what_a_kernel_is_compiled_for():
    assert Tile(4, 2, 128).options == {"VECTOR": 4, "BLOCK": 256, "num_warps": 2, "maxnreg": 128}

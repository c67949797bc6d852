"""What holds on a CUDA GPU that is short of memory: forwards are cut before they run, and running out is answered."""

import gc
from contextlib import contextmanager

import pytest
import torch
import transformers

from noback.engines import Local
from noback.estimators import TwoSided
from noback.memory import forget_peak, peak_memory
from noback.tasks import Batch
from tests.conftest import weights_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

EXAMPLES, TOKENS, WORDS = 512, 256, (7, 11)
POINTS = TwoSided(eps=1e-2).points([0x123456789ABCDEF0])
GIB = 2**30


@pytest.fixture
def model():
    """A small model whose activations are large: about 5 GiB for the batch at two points."""
    config = transformers.RobertaConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2048,
        max_position_embeddings=TOKENS + 2, pad_token_id=1, type_vocab_size=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForMaskedLM.from_config(config).eval().to("cuda")


@pytest.fixture
def batch():
    ids = torch.randint(10, 1000, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Batch(inputs, torch.full((EXAMPLES,), TOKENS // 2), torch.zeros(EXAMPLES, dtype=torch.long))


def uncut(model, batch):
    """The scores with all the memory there is, and the bytes that the forward took."""
    engine = Local(model, weights_of(model), WORDS)
    scores = engine.score(batch, POINTS)
    size, took = engine._room._largest[True]
    assert (size.points, size.rows, size.tokens) == (2, EXAMPLES, TOKENS)
    assert took > GIB
    return scores, took


@contextmanager
def only(free):
    """Within, so many bytes are left."""
    gc.collect()
    torch.cuda.empty_cache()
    filler = torch.empty(torch.cuda.mem_get_info()[0] - free, dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del filler
        gc.collect()
        torch.cuda.empty_cache()


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=2e-4)


@pytest.mark.parametrize("share", [3, 5])
def test_what_would_not_fit_is_cut_before_it_runs(model, batch, share, monkeypatch):
    expected, need = uncut(model, batch)
    monkeypatch.setattr(Local, "_take_less", lambda *_: pytest.fail("the memory ran out"))
    said = []
    with only(need // share):
        engine = Local(model, weights_of(model), WORDS, say=said.append)
        for _ in range(5):  # tried, run plainly, captured, replayed
            assert_equal(engine.score(batch, POINTS), expected)
        assert engine._graphs._captured
        assert engine._graphs.refused is None
        del engine
    assert len(said) == 1
    assert f"2 points and {EXAMPLES} examples of {TOKENS} tokens would take about" in said[0]
    assert "to 1 points" in said[0]


def test_a_forward_that_fits_is_not_cut(model, batch, monkeypatch):
    expected, need = uncut(model, batch)
    monkeypatch.setattr(Local, "_take_less", lambda *_: pytest.fail("the memory ran out"))
    said = []
    with only(2 * need):
        engine = Local(model, weights_of(model), WORDS, say=said.append)
        for _ in range(4):
            assert_equal(engine.score(batch, POINTS), expected)
        assert engine._room._largest[True][0].rows == EXAMPLES
        del engine
    assert not said


def test_running_out_is_answered_with_smaller_passes_where_nothing_was_foreseen(model, batch):
    expected, need = uncut(model, batch)
    said = []
    with only(need // 3):
        engine = Local(model, weights_of(model), WORDS, say=said.append)
        engine._room = None
        for _ in range(4):
            assert_equal(engine.score(batch, POINTS), expected)
        assert not engine.point_by_point
        del engine
    assert "out of GPU memory; from now on 1 points and 512 examples at a time" in said[0]
    assert "1 points and 256 examples" in said[1]


def test_what_is_called_free_can_be_had_though_captured_forwards_keep_memory(model, batch):
    _, need = uncut(model, batch)
    with only(3 * need):
        engine = Local(model, weights_of(model), WORDS)
        for _ in range(4):
            engine.score(batch, POINTS)
        assert engine._graphs.held > need // 2
        free = engine._room._memory.free()
        assert free > need
        had = torch.empty(int(0.95 * free), dtype=torch.uint8, device="cuda")
        del had, engine


def test_the_peak_of_the_whole_is_known_though_forwards_are_watched(model, batch):
    device = torch.device("cuda", torch.cuda.current_device())
    forget_peak()
    filler = torch.empty(32 * GIB, dtype=torch.uint8, device=device)
    del filler
    uncut(model, batch)
    assert torch.cuda.max_memory_allocated(device) < 32 * GIB <= peak_memory(device)
    forget_peak()
    assert peak_memory(device) < 32 * GIB

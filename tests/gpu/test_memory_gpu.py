"""A CUDA GPU that is short of memory: running out is answered with smaller passes, and the scores stay."""

import gc
from contextlib import contextmanager

import pytest
import torch
import transformers

from noback.engines import Local
from noback.memory import forget_peak, peak_memory
from noback.tasks import Batch
from tests.conftest import weights_of
from tests.gpu.test_gpu import both_sides

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

EXAMPLES, TOKENS, WORDS = 512, 256, (7, 11)
POINTS = both_sides(0x123456789ABCDEF0, 1e-2)
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
    device, before = torch.device("cuda", torch.cuda.current_device()), torch.cuda.memory_allocated()
    forget_peak()
    scores = Local(model, weights_of(model), WORDS).score(batch, POINTS)
    took = peak_memory(device) - before
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


@pytest.mark.parametrize("share", [3, 5])
def test_running_out_is_answered_with_smaller_passes(model, batch, share):
    expected, need = uncut(model, batch)
    said = []
    with only(need // share):
        engine = Local(model, weights_of(model), WORDS, say=said.append)
        for _ in range(4):  # run plainly, captured, replayed
            for one, other in zip(engine.score(batch, POINTS), expected, strict=True):
                assert torch.allclose(one, other, atol=2e-4)
        assert not engine.point_by_point
        del engine
    assert "out of GPU memory; from now on 1 points and 512 examples at a time" in said[0]

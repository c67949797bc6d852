"""Values that wait for their use on a GPU: a norm adds what it norms, attention takes the factor of its queries."""

import pytest
import torch
import transformers

from noback.engines import Local
from noback.engines.loading import open_model
from noback.weights import DTYPES
from tests.conftest import weights_of
from tests.engines.test_causal import BATCHES
from tests.gpu.test_gpu import PAIR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
if torch.cuda.is_available():
    from noback.engines import attention_triton
    from noback.engines.attention_triton import attention
    from noback.engines.norm_triton import layer_norm
    from noback.engines.waiting import Deferring


def opt(dtype):
    """Two layers with heads of 64, so that queries are multiplied by a power of two."""
    torch.manual_seed(7)
    config = transformers.OPTConfig(
        hidden_size=128, ffn_dim=256, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=128,
        vocab_size=16384, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config).to("cuda", dtype).eval()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("width", "biased"), [(64, True), (100, True), (1024, False), (5120, True)])
def test_the_norm_of_a_sum_is_that_of_the_sum_made_before(dtype, width, biased):
    made = torch.Generator(device="cuda").manual_seed(0)
    rows, other, scale, shift = (
        torch.randn(shape, generator=made, device="cuda").to(dtype)
        for shape in ((6, 7, width), (6, 7, width), (3, width), (3, width))
    )
    shift, total = shift if biased else None, torch.empty_like(rows)
    expected = layer_norm(rows + other, scale, shift, 1e-5)
    assert torch.equal(layer_norm(rows, scale, shift, 1e-5, other), expected)
    assert torch.equal(layer_norm(rows, scale, shift, 1e-5, other, total), expected)
    assert torch.equal(total, rows + other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["mini", "opt"])
def test_scores_are_those_of_values_that_do_not_wait(kind, dtype, small_task, tokenizer, monkeypatch):
    if kind == "mini":
        batch, word_ids = small_task.batch(0, 5, 0), small_task.word_ids
    else:
        batch, word_ids = BATCHES["words"](tokenizer)
    found = []
    for waits in (True, False):
        model = open_model(kind, dtype, torch.device("cuda")).model if kind == "mini" else opt(DTYPES[dtype])
        engine = Local(model, weights_of(model), word_ids, tf32=True)
        with monkeypatch.context() as patch:
            if not waits:
                patch.setattr(Deferring, "wait", lambda _, later: later.value())
            found.append([engine.score(batch, PAIR) for _ in range(3)])  # plain, captured, replayed
        probes, norms = engine._probes, [one for one in model.modules() if isinstance(one, torch.nn.LayerNorm)]
        assert engine._graphs.refused is None
        assert engine._graphs._captured
        assert not engine.point_by_point
        if waits and kind == "opt":  # its sums go on beside their norms, except the last one
            assert [one for one in norms if one not in probes._kept] == [model.model.decoder.final_layer_norm]
            assert probes._rectified == {layer.fc1 for layer in model.model.decoder.layers}
        elif waits:  # only its norms use the sums of RoBERTa
            assert not probes._kept
            assert not probes._rectified
    for ours, plain in zip(*found, strict=True):
        for one, other in zip(ours, plain, strict=True):
            if kind == "mini":
                assert torch.equal(one, other)
            else:  # a product that ends with ReLU may be another kernel
                torch.testing.assert_close(one, other, atol=1e-3 if dtype == "float32" else 5e-2, rtol=0)
    for captured, replayed in zip(*found[0][1:], strict=True):
        assert torch.equal(captured, replayed)


def test_attention_multiplies_by_the_factor_of_its_queries_in_a_captured_forward_too(tokenizer, monkeypatch):
    seen = []

    def noted(*args, **kwargs):
        seen.append((torch.cuda.is_current_stream_capturing(), kwargs["scale"]))
        return attention(*args, **kwargs)

    monkeypatch.setattr(attention_triton, "attention", noted)
    model, (batch, word_ids) = opt(torch.bfloat16), BATCHES["words"](tokenizer)
    engine = Local(model, weights_of(model), word_ids)
    for _ in range(2):
        engine.score(batch, PAIR)
    assert set(seen) == {(False, 0.125), (True, 0.125)}

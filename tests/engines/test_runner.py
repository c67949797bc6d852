"""The GPU's runner on a CPU, with a stand-in for captured graphs: what is padded, masked, captured and let go."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from noback.engines import Local, Reference, local
from noback.engines.cuda import runner
from noback.values import UNPERTURBED
from tests.conftest import tiny_model, weights_of
from tests.engines.test_attention import Masks
from tests.engines.test_local import POINTS


class Graphs:
    """Runs every forward as it comes, and notes what it is asked."""

    capturing, captured, refused = False, (), None

    def __init__(self, _device):
        self.keys, self.shapes, self.cuts, self.forgot, self.sources = [], [], 0, 0, []

    def __call__(self, key, inputs, forward):
        self.keys.append(key)
        self.shapes.append(tuple(inputs["input_ids"].shape))
        return forward(self.brought(inputs))

    def brought(self, inputs):
        return dict(inputs)

    def cut(self):
        self.cuts += 1

    def forget(self):
        self.forgot += 1

    def made_for(self, source):
        self.sources.append(source)


@pytest.fixture
def on_gpu(monkeypatch, small_task):
    """An engine that takes its device for a GPU, its graphs, its model, and what was done meanwhile."""
    model, made, meanwhile = tiny_model("roberta"), [], []
    model.set_attn_implementation("sdpa")
    weights, sweeps = weights_of(model), SimpleNamespace(order=len)
    monkeypatch.setattr(weights, "place", lambda _points: sweeps)
    monkeypatch.setattr(runner, "Graphs", lambda device: made.append(Graphs(device)) or made[-1])
    monkeypatch.setattr(runner, "_on_the_stream", lambda *_, **__: nullcontext())
    monkeypatch.setattr(local, "runner_for", runner.gpu_runner)
    engine = Local(
        model, weights, small_task.word_ids, meanwhile=lambda: meanwhile.append(torch.is_inference_mode_enabled())
    )
    return engine, made[0], model, meanwhile


def test_a_gpus_forwards_score_as_whole_perturbed_copies(on_gpu, small_task):
    engine, graphs, model, meanwhile = on_gpu
    batch = small_task.batch(0, 5, 0)
    expected = Reference(model, engine.weights, small_task.word_ids).score(batch, POINTS)
    for _ in range(2):
        for ours, twins in zip(engine.score(batch, POINTS), expected, strict=True):
            torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)
    assert not engine.point_by_point
    assert graphs.keys == [(len(POINTS), (None, True))] * 2  # checks are not captured; the last layer is cut
    assert graphs.shapes == [(5, 16)] * 2  # tokens up to the next multiple of eight
    assert batch.inputs["input_ids"].shape[1] < 16
    assert graphs.cuts == 2  # a captured forward is launched in two parts
    assert len(set(map(id, graphs.sources))) == 1
    assert meanwhile == [False, False]  # what is made meanwhile is for anyone


def test_a_gpus_forwards_have_full_masks_also_where_nothing_is_padded(on_gpu, small_task):
    engine, _, model, _ = on_gpu
    batch = small_task.batch(0, 5, 0).part(slice(0, 1))
    for points in (POINTS, [UNPERTURBED]):
        engine.score(batch, points)
        with Masks() as masks:
            engine.score(batch, points)
        assert len(masks.seen) == model.config.num_hidden_layers
        assert all(mask is not None and mask.dtype == torch.float32 for mask in masks.seen)


def test_running_out_of_memory_lets_the_captured_forwards_go(on_gpu, small_task):
    engine, graphs, model, _ = on_gpu

    def take(_model, _args, inputs):
        if len(inputs["input_ids"]) > 4:
            raise torch.OutOfMemoryError

    model.register_forward_pre_hook(take, with_kwargs=True)
    engine.score(small_task.batch(0, 4, 0), [UNPERTURBED, UNPERTURBED])
    assert graphs.forgot == 1

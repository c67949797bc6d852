"""The bench: contenders that do what they say, gaps that are named, and a table that adds up."""

import copy

import pytest
import torch

from noback.adapters import Full
from noback.bench import CONTENDERS, SHAPES, BenchCase, Shape, benching, contenders, measuring
from noback.bench.benching import bench, bench_subject
from noback.bench.contenders import NobackStep, adam, eager, eager_together, ways
from noback.bench.measuring import Measured, Meter, Stopped, gap_in
from noback.bench.reference import ReferenceStep
from noback.bench.shapes import random_model
from noback.bench.subject import PlainForward, subject_with
from noback.bench.table import rows
from noback.directions import KeptColumns, Rademacher, seeds_of
from noback.engines import Local
from noback.errors import InputError
from noback.estimators import OneSided, TwoSided, estimate
from noback.journal import StepRecord
from noback.objectives import cross_entropy
from noback.replaying import recorded_move
from noback.rules import Momentum, Sgd
from noback.values import Move, Term, direction_seeds
from noback.weights import Weights

CPU = torch.device("cpu")
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 300}
TINY = {
    "roberta": Shape(
        "roberta", 40, {**SMALL, "intermediate_size": 24, "max_position_embeddings": 42, "pad_token_id": 1}, masked=True
    ),
    "opt": Shape("opt", 40, {**SMALL, "word_embed_proj_dim": 16, "ffn_dim": 24, "max_position_embeddings": 40}),
    "llama": Shape(
        "llama", 40, {**SMALL, "num_key_value_heads": 1, "intermediate_size": 24, "tie_word_embeddings": False}
    ),
}  # fmt: skip
CASE = BenchCase(batch=3, tokens=7, repeats=2)


def tiny(kind, dtype=torch.float32, case=CASE):
    shape = TINY[kind]
    return subject_with(random_model(shape, dtype, CPU), case, CPU, masked=shape.masked, mask=299)


def told(_what, _done, _total):
    """Nothing."""


def own_logits(subject):
    """[examples, labels] the long way round: the model's whole answer, then the position and the words."""
    with torch.inference_mode():
        logits = subject.model(**subject.batch.inputs).logits
    return logits[torch.arange(len(subject.batch)), subject.batch.mask_positions][:, list(subject.words)]


# What contenders compute


@pytest.mark.parametrize("every_word", [False, True])
@pytest.mark.parametrize("kind", TINY)
def test_the_plain_forward_gives_the_models_own_label_logits(kind, every_word):
    subject = tiny(kind)
    with torch.inference_mode():
        found = PlainForward(subject, every_word=every_word)()
    torch.testing.assert_close(found, own_logits(subject))
    assert len(PlainForward(subject, times=2)()) == 2 * len(subject.batch)


@pytest.mark.parametrize("kind", TINY)
def test_a_step_of_reference_mezo_equals_nobacks_given_the_same_noise(kind):
    eps, lr = 0.1, 1e-2
    subject = tiny(kind)
    with torch.no_grad():
        for tensor in subject.model.parameters():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)))
    other = copy.deepcopy(subject)
    (seed,) = direction_seeds(0, 0, 1)

    def noise(name, tensor):
        return Weights({name: torch.zeros_like(tensor)}).perturbed(name, [Move((Term(seed, 1.0),))])[0]

    tuned = Full().attach(subject.model, (), 0)
    step = NobackStep(subject, tuned, BenchCase(estimator=TwoSided(eps=eps), rule=Sgd(lr=lr)))
    walked = Full().attach(other.model, (), 0)
    forward = PlainForward(other, every_word=True)
    slope = ReferenceStep(list(walked.items()), forward, other.batch.gold, eps=eps, lr=lr, noise=noise)(seed)
    assert abs(slope) > 1e-2
    assert step() == pytest.approx(slope, rel=1e-4)
    assert step.note is None or kind == "opt"  # whose feed-forward flattens its batch on the way
    for name, tensor in tuned.items():
        torch.testing.assert_close(tensor.data, walked[name].data, atol=1e-6, rtol=0, msg=name)


def test_reference_mezo_draws_the_same_noise_in_each_sweep_and_comes_home():
    tensor = torch.zeros(100)
    seen = []

    def forward():
        seen.append(tensor.data.clone())
        return torch.zeros(2, 2)

    ReferenceStep([("w", tensor)], forward, torch.tensor([0, 1]), eps=1.0)(5)
    torch.testing.assert_close(seen[0], -seen[1])
    torch.testing.assert_close(tensor, torch.zeros(100), atol=1e-6, rtol=0)
    assert 0.8 < seen[0].std() < 1.2


@pytest.mark.parametrize("noise", [Rademacher(), KeptColumns(period=2)], ids=str)
def test_a_case_may_name_another_method(noise):
    """The step of the bench and a run of the driver by hand end on the same weights."""
    case = BenchCase(estimator=OneSided(eps=0.1, directions=3), rule=Momentum(lr=1e-2, window=2), noise=noise)
    step = NobackStep((subject := tiny("roberta")), Full().attach(subject.model, (), 0), case)
    for _ in range(4):
        step()
    other = tiny("roberta")
    weights = Weights(Full().attach(other.model, (), 0), noise)
    engine, records = Local(other.model, weights, other.words), []
    for number in range(4):

        def score(points):
            return [cross_entropy(output, other.batch.gold) for output in engine.score(other.batch, points)]

        found = estimate(case.estimator, seeds_of(noise, 0, number, 3), score)
        records.append(StepRecord(number, found.loss, found.slopes, found.figures))
        weights.advance([recorded_move(case.rule, 0, 4, records, number, noise=weights.family)])
    assert step._weights.digest() == weights.digest()
    assert case.table()["estimator"]["kind"] == "one_sided"


def test_adam_lowers_its_loss(monkeypatch):
    subject = tiny("opt")
    tuned = Full().attach(subject.model, (), 0)
    monkeypatch.setattr(contenders, "LR", 1e-2)
    step = adam(subject, tuned, BenchCase())
    losses = [step() for _ in range(5)]
    assert losses[-1] < losses[0]


def test_random_weights_are_made_in_their_type_with_plain_norms_and_biases():
    model = random_model(TINY["opt"], torch.bfloat16, CPU)
    tensors = dict(model.named_parameters())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert tensors["model.decoder.layers.0.fc1.weight"].detach().float().std().item() == pytest.approx(0.02, rel=0.2)
    assert bool((tensors["model.decoder.final_layer_norm.weight"] == 1).all())
    assert bool((tensors["model.decoder.layers.0.fc1.bias"] == 0).all())


@pytest.mark.parametrize(
    ("name", "parameters"), [("roberta-large", 355e6), ("opt-1.3b", 1.32e9), ("opt-13b", 12.85e9), ("llama-8b", 8.03e9)]
)
def test_a_shape_has_the_size_of_its_model(name, parameters):
    shape = SHAPES[name]
    with torch.device("meta"):
        import transformers

        kind = transformers.AutoModelForMaskedLM if shape.masked else transformers.AutoModelForCausalLM
        model = kind.from_config(transformers.AutoConfig.for_model(shape.kind, **shape.numbers))
    assert sum(tensor.numel() for tensor in model.parameters()) == pytest.approx(parameters, rel=0.01)


# The measuring


@pytest.mark.parametrize(("kind", "dtype"), [("roberta", "float32"), ("opt", "bfloat16"), ("llama", "float32")])
def test_a_case_gives_every_figure(kind, dtype):
    case = BenchCase(batch=3, tokens=7, repeats=1, dtype=dtype)
    table = bench_subject(tiny(kind, getattr(torch, dtype), case), case, told)
    assert [row["contender"] for row in table["contenders"]] == list(CONTENDERS)
    for row in table["contenders"]:
        assert row["gap"] is None
        assert row["milliseconds"] > 0
        assert row["peak_bytes"] > 0
        assert row["tokens_a_second"] == pytest.approx(21e3 / row["milliseconds"], rel=0.01)
    assert [row["way"] for row in table["ways"]] == ["eager", "eager, one batch"]
    assert table["sweep"]["gap"] is None
    assert table["sweep"]["noback_gigabytes_a_second"] > 0
    assert not table["stopped"]


def test_lora_tunes_its_small_matrices_only():
    case = BenchCase(batch=3, tokens=7, repeats=1, adapter="lora")
    table = bench_subject(tiny("llama", case=case), case, told)
    assert [row["gap"] for row in table["contenders"]] == [None] * 4
    assert 0 < table["case"]["tuned"] < table["case"]["parameters"] / 2


def test_an_adapter_that_cannot_be_attached_is_a_gap_and_forwards_are_still_measured(monkeypatch):
    def attach(*_):
        raise InputError("--adapter lora needs a library that is not here")

    monkeypatch.setattr(benching, "_attached", attach)
    case = BenchCase(batch=3, tokens=7, repeats=1, adapter="lora")
    forwards, *others = bench_subject(tiny("opt", case=case), case, told)["contenders"]
    assert forwards["milliseconds"] > 0
    assert {row["gap"] for row in others} == {"--adapter lora needs a library that is not here"}


def test_a_contender_out_of_memory_is_a_gap_and_the_others_go_on():
    def broken():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    meter = Meter(CPU, 2, told)
    meter.measure({"one": lambda: broken, "two": lambda: lambda: None})
    assert meter.found["one"].gap == "out of memory"
    assert meter.found["two"].gap is None
    assert len(meter.found["two"].seconds) == 2


@pytest.mark.parametrize(
    ("error", "gap"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (MemoryError(), "out of memory"),
        (InputError("a sentence"), "a sentence"),
        (ValueError("odd\nand more"), "ValueError: odd"),
    ],
)
def test_trouble_is_named(error, gap):
    one = Measured()
    with gap_in(one):
        raise error
    assert one.gap == gap


def test_asked_to_stop_it_gives_what_is_there_so_far(monkeypatch):
    calls = iter(range(1000))
    monkeypatch.setattr(benching, "subject_of", lambda case, _note: tiny("opt", case=case))
    table = bench(CASE, stop=lambda: next(calls) > 3 * measuring.WARM_UP + 4)
    found = {row["contender"]: row for row in table["contenders"]}
    assert table["stopped"]
    assert found["forwards"]["milliseconds"] > 0
    assert found["reference"]["gap"] == found["adam"]["gap"] == table["sweep"]["gap"] == "stopped"


def test_ratios_are_of_medians_and_of_inferences_peak():
    found = {
        "eager": Measured([4.0, 2.0, 3.0], 100),
        "graph": Measured([1.0, 2.0, 1.5], 300),
        "noback": Measured([3.0], 110),
        "reference": Measured([6.0], 150),
        "adam": Measured(gap="out of memory"),
    }
    forwards, noback, slow, adam_row = rows(found, ["eager", "graph"], CASE)
    assert (forwards["way"], forwards["milliseconds"], forwards["peak_bytes"]) == ("graph", 1500.0, 100)
    assert (noback["over_forwards"], noback["over_reference"], noback["over_inference"]) == (2.0, 0.5, 1.1)
    assert (slow["over_forwards"], slow["over_reference"]) == (4.0, 1.0)
    assert (adam_row["milliseconds"], adam_row["gap"]) == (None, "out of memory")


def test_two_forwards_are_two_batches_or_one_of_twice_the_size():
    subject = tiny("llama")
    one, two = eager(subject)()
    both = eager_together(subject)()
    torch.testing.assert_close(torch.cat([one, two]), both)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("default")  # compilers have their own opinions
@pytest.mark.parametrize("kind", TINY)
def test_every_way_of_running_forwards_on_a_cuda_device_gives_the_same_logits(kind):
    device = torch.device("cuda")
    model = random_model(TINY[kind], torch.float32, device)
    subject = subject_with(model, CASE, device, masked=TINY[kind].masked, mask=299)
    answers = {}
    for name, make in ways(device).items():
        step = make(subject)
        step()
        answer = step()
        answers[name] = answer if isinstance(answer, torch.Tensor) else torch.cat(answer)
    for name, answer in answers.items():
        torch.testing.assert_close(answer, answers["eager"], atol=1e-4, rtol=1e-3, msg=name)


def test_stopping_is_no_gap():
    with pytest.raises(Stopped), gap_in(Measured()):
        raise Stopped

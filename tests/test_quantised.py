"""Quantised bases: only what is put beside them is tuned, their products are exact, and a journal names their bits."""

import dataclasses
import sys

import peft
import pytest
import torch
import transformers
from torch.testing._internal.two_tensor import TwoTensor

from noback import InputError, Lora, Prefix, RunConfig, Sgd, TwoSided, export, train, tuned_run
from noback.adapters import base_tensors
from noback.engines import open_model
from noback.engines.modules.lora import is_lora
from noback.errors import DamagedError
from noback.evaluating import score
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.measuring import measure
from noback.replaying import begin_with
from noback.rules import move_of
from noback.run import Run, drawn_data
from noback.tensor_bytes import digest
from noback.weights import Weights
from tests.conftest import check_against_the_twin, tiny_model

bitsandbytes = pytest.importorskip("bitsandbytes")

BITS = ["int8", "int4"]


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=6, batch=4, adapter=Lora(rank=2),
        rule=Sgd(lr=1e-1), estimator=TwoSided(eps=1e-1),
    )  # fmt: skip


@pytest.fixture(params=BITS)
def quantised_folder(request, tmp_path, tiny_folder, tokenizer):
    """A checkpoint as transformers itself saves a quantised model, and the bits."""
    model = open_model(str(tiny_folder), "float32", quantise=request.param).model
    model.save_pretrained(tmp_path / "quantised")
    tokenizer.save_pretrained(tmp_path / "quantised")
    return tmp_path / "quantised", request.param


def stored(model):
    """The bytes of a base by the names they have without an adapter."""
    return {
        name.replace(".base_layer", ""): tensor.clone()
        for name, tensor in base_tensors(model).items()
        if "lora_" not in name and "prefix_" not in name
    }


def linear(model):
    return model.roberta.encoder.layer[0].attention.self.query


# Scores


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("adapter", [Lora(rank=2), Prefix(tokens=3)], ids=lambda one: one.kind)
def test_probes_over_a_quantised_base_equal_whole_perturbed_copies(tiny_folder, small_task, adapter, bits):
    model = open_model(str(tiny_folder), "float32", quantise=bits).model
    before = stored(model)
    check_against_the_twin(model, Weights(adapter.attach(model, (), 0)), small_task)
    after = stored(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(("bits", "error"), [("int8", 1e-2), ("int4", 3e-1)])
def test_a_quantised_product_is_near_the_plain_one_and_rounds_no_activation(tiny_folder, bits, error):
    """Rounded activations would not add up: f(x + y) = f(x) + f(y) - bias holds to float32's rounding only without."""
    plain = linear(transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder))
    ours = linear(open_model(str(tiny_folder), "float32", quantise=bits).model)
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 16)
    with torch.no_grad():
        assert 0 < (ours(x) - plain(x)).abs().max() / plain(x).abs().max() < error
        torch.testing.assert_close(ours(x + y), ours(x) + ours(y) - ours.bias, atol=1e-6, rtol=1e-5)


def test_a_packed_weight_is_no_plain_lora():
    """B A must not be added to a weight that only looks like float32."""
    module = peft.inject_adapter_in_model(
        peft.LoraConfig(r=2, target_modules=["0"]), torch.nn.Sequential(torch.nn.Linear(4, 4))
    )[0]
    assert is_lora(module)
    packed = TwoTensor(torch.randn(4, 4), torch.randn(4, 4))
    module.base_layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    assert not is_lora(module)


# A run


@pytest.mark.parametrize("bits", BITS)
def test_training_lowers_the_loss(config, bits):
    config = dataclasses.replace(config, model="mini", quantise=bits, batch=8, rule=Sgd(lr=1e-3))
    run = Run(config, RunFolder("none"))
    run.task.use(drawn_data(config))
    before, bytes_before = score(run, "train").loss, stored(run.model)
    for step in range(12):
        estimate = measure(run, step, 1e-2).estimate
        run.weights.advance([move_of(config.rule, step, 12, [estimate])])
    assert score(run, "train").loss < before - 0.05
    assert all(torch.equal(tensor, bytes_before[name]) for name, tensor in stored(run.model).items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adapter", [Lora(rank=2), Prefix(tokens=3)], ids=lambda one: one.kind)
@pytest.mark.parametrize("bits", BITS)
def test_base_and_journal_give_the_live_weights(config, tmp_path, bits, adapter, dtype):
    """Law 3 over a quantised base: from the journal file alone."""
    result = train(dataclasses.replace(config, quantise=bits, adapter=adapter, dtype=dtype), tmp_path / "run")
    (tmp_path / "alone").write_bytes((tmp_path / "run" / "journal").read_bytes())
    replayed, _ = tuned_run(tmp_path / "alone", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights != replayed.start
    assert {str(tensor.dtype) for tensor in replayed.weights.tensors.values()} == {f"torch.{dtype}"}
    assert not replayed.engine.point_by_point


def test_a_journal_names_the_bits_of_its_quantised_base(config, tmp_path):
    train(dataclasses.replace(config, quantise="int8"), tmp_path / "run")
    contents = read_journal(tmp_path / "run" / "journal")
    begin_with(Run(dataclasses.replace(config, quantise="int8"), RunFolder(tmp_path / "run")), contents)
    for other in ("int4", None):
        with pytest.raises(DamagedError, match="made from other base weights"):
            begin_with(Run(dataclasses.replace(config, quantise=other), RunFolder(tmp_path / "run")), contents)


@pytest.mark.parametrize("bits", BITS)
def test_every_number_and_every_scale_counts_in_the_digest(tiny_folder, bits):
    model = open_model(str(tiny_folder), "float32", quantise=bits).model
    seen = digest(base_tensors(model))
    module = linear(model)
    scales = module.weight.SCB if bits == "int8" else module.weight.quant_state.absmax
    for tensor in (module.weight.data, scales, module.bias.data):
        flat = tensor.view(-1)
        flat[3] += 1
        assert digest(base_tensors(model)) != seen
        flat[3] -= 1
    assert digest(base_tensors(model)) == seen


def test_a_tensor_of_several_parts_is_digested_part_by_part(tiny_folder):
    """Some libraries (torchao) keep numbers and scales in one tensor object, which has no memory of its own."""
    model = open_model(str(tiny_folder), "float32", quantise="int8").model
    parts = torch.randn(4, 4), torch.randn(4, 4)
    model.lm_head.packed = torch.nn.Parameter(TwoTensor(*parts), requires_grad=False)
    found = base_tensors(model)
    assert [name for name in found if "packed" in name] == ["lm_head.packed.a", "lm_head.packed.b"]
    assert torch.equal(found["lm_head.packed.b"].view(torch.float32), parts[1].view(-1))


# A checkpoint that is quantised already


def test_a_quantised_checkpoint_opens_trains_and_replays(noback, quantised_folder, data_folder, tmp_path, tiny_folder):
    folder, bits = quantised_folder
    code, _, said = noback(
        "train", "--model", folder, "--data", data_folder, "--adapter", "lora", "--set", "adapter.rank=2", "--steps", 4,
        "--batch", 4, "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, said
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() != replayed.start
    opened = open_model(str(tiny_folder), "float32", quantise=bits).model
    assert replayed.base == digest(base_tensors(opened))  # quantised before or while opening: the same bits


def test_a_quantised_checkpoint_is_not_quantised_again(quantised_folder):
    folder, bits = quantised_folder
    with pytest.raises(InputError, match="is quantised already, by bitsandbytes; leave out --quantise"):
        open_model(str(folder), "float32", quantise=bits)


@pytest.mark.parametrize("adapter", ["full", "head"])
def test_the_weights_of_a_quantised_checkpoint_are_not_tuned(noback, quantised_folder, data_folder, adapter):
    code, _, said = noback(
        "train", "--model", quantised_folder[0], "--data", data_folder, "--adapter", adapter, "--steps", 1
    )
    assert code == 2
    assert f"adapter '{adapter}' tunes the model's own weights and these are quantised" in said
    assert "use --adapter lora" in said


# Export


@pytest.mark.parametrize("bits", BITS)
def test_plain_peft_gives_the_exported_adapters_logits(config, tmp_path, tiny_folder, bits):
    train(dataclasses.replace(config, quantise=bits), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "adapter")
    quantisation = transformers.BitsAndBytesConfig(
        load_in_8bit=bits == "int8", load_in_4bit=bits == "int4", bnb_4bit_quant_type="nf4"
    )
    base = transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder, quantization_config=quantisation).eval()
    batch = run.task.prompts(["a warm and funny film"])
    with torch.no_grad():
        before, ours = unrounded(base)(**batch.inputs).logits, run.model(**batch.inputs).logits
        loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        theirs = unrounded(loaded)(**batch.inputs).logits
    assert (before - ours).abs().max() > 1e-4  # it does something
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def unrounded(model):
    """A model with the library's own products, those that leave activations as they are."""
    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear8bitLt):
            module.train()
        elif isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
    return model


def test_a_merge_into_quantised_weights_is_refused(config, tmp_path):
    train(dataclasses.replace(config, quantise="int4"), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    with pytest.raises(InputError, match=r"--merge would round A and B into the quantised weights.*adapter alone"):
        export(run, tmp_path / "merged", merge=True)
    assert not (tmp_path / "merged").exists()


# What is refused before a model is opened


@pytest.mark.parametrize("adapter", ["full", "head"])
def test_full_tuning_is_refused_where_quantising_is_asked(noback, adapter):
    code, _, said = noback("train", "--model", "nowhere/at/all", "--quantise", "int8", "--adapter", adapter)
    assert code == 2
    assert f"adapter '{adapter}' tunes the model's own weights and these are quantised" in said


def test_a_comparison_with_heads_is_refused_before_its_first_run(noback, data_folder, tmp_path):
    options = ("--data", data_folder, "--adapter", "lora", "--quantise", "int8", "--out", tmp_path / "out")
    code, _, said = noback("compare", *options)
    assert code == 2
    assert "'head/cross_entropy' tunes a head" in said
    assert "--objectives cross_entropy,accuracy" in said
    assert not (tmp_path / "out").exists()


def test_an_unknown_word_is_refused(noback):
    code, _, said = noback("train", "--quantise", "int5", "--adapter", "lora")
    assert code == 2
    assert "quantise is 'int5'; expected one of int4, int8" in said


def test_a_missing_library_is_named(noback, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    code, _, said = noback("train", "--quantise", "int8", "--adapter", "lora")
    assert code == 2
    assert "pip install 'noback[quantised]'" in said


def test_a_model_that_is_not_quantised_keeps_its_digest():
    model = tiny_model("roberta")
    assert list(base_tensors(model)) == [name for name, _ in model.named_parameters()]

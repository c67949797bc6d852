"""Adapters: what is attached, what is tuned, what is saved, and that it is alive."""

import dataclasses
import json

import peft
import pytest
import torch
import transformers

from noback import Full, InputError, Lora, Prefix, RunConfig, Sgd, TwoSided, evaluate, export, tuned_run
from noback.adapters import floating
from noback.engines import Local
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.replaying import begin_with, go_to
from noback.run import Run, drawn_data
from noback.tensor_bytes import packed, rounded_start, unpacked
from noback.training import Interrupted, resume, train
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import check_against_the_twin, tiny_model

KINDS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
SMALL = [Lora(rank=2), Prefix(tokens=3)]


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=6, batch=4, rule=Sgd(lr=1e-1), estimator=TwoSided(eps=1e-1)
    )


def logits_of(run, texts=("a warm and funny film", "it drags and never works")):
    return run.engine.score(run.task.prompts(list(texts)), [UNPERTURBED])[0]


# Every adapter on every architecture


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", SMALL, ids=lambda one: one.kind)
def test_probes_of_an_adapter_equal_whole_perturbed_copies(kind, adapter, small_task):
    model = tiny_model(kind)
    check_against_the_twin(model, Weights(adapter.attach(model, (), 0)), small_task)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", SMALL, ids=lambda one: one.kind)
def test_an_adapter_freezes_everything_else_and_each_of_its_tensors_changes_the_output(kind, adapter, small_task):
    model = tiny_model(kind)
    body = {name: tensor.clone() for name, tensor in floating(model).items()}
    tuned = adapter.attach(model, (), 0)
    weights, batch = Weights(tuned), small_task.batch(0, 4, 0)
    before = Local(model, weights, small_task.word_ids).score(batch, [UNPERTURBED])[0]
    weights.advance([Move((Term(9, 0.5),))])  # B is no longer zero
    for name, tensor in tuned.items():
        engine = Local(model, weights, small_task.word_ids)
        moved = engine.score(batch, [UNPERTURBED])[0]
        with torch.no_grad():
            tensor.add_(0.5)
        assert not torch.equal(engine.score(batch, [UNPERTURBED])[0], moved), name
    assert not torch.equal(moved, before)
    after = {name.replace(".base_layer", ""): tensor for name, tensor in floating(model).items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in body.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adapter", [*SMALL, Full("biases"), Full("last:1")], ids=str)
def test_base_and_journal_give_the_live_weights(config, tmp_path, adapter, dtype):
    """Law 3 for each adapter: from the journal file alone."""
    result = train(dataclasses.replace(config, adapter=adapter, dtype=dtype), tmp_path / "run")
    (tmp_path / "alone").write_bytes((tmp_path / "run" / "journal").read_bytes())
    replayed, _ = tuned_run(tmp_path / "alone", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights != replayed.start


@pytest.mark.parametrize("adapter", SMALL, ids=lambda one: one.kind)
def test_a_stopped_run_of_an_adapter_ends_on_the_same_bits(config, tmp_path, adapter):
    config = dataclasses.replace(config, adapter=adapter)
    undisturbed = train(config, tmp_path / "undisturbed")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == undisturbed.final_weights


def test_a_run_comes_back_to_its_start_without_the_models_file(config, tmp_path):
    config = dataclasses.replace(config, adapter=Lora(rank=2))
    train(config, tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    contents = read_journal(tmp_path / "run" / "journal")
    run._opened = None  # it must not be asked
    go_to(run, 0, contents, snapshots=False)
    assert run.weights.digest() == run.start


# LoRA


def test_a_fresh_lora_changes_nothing_and_depends_on_the_runs_seed_only(small_task):
    models = [tiny_model("roberta") for _ in range(3)]
    tuned = [Lora(rank=4).attach(model, (), seed) for model, seed in zip(models, (0, 0, 1), strict=True)]
    plain = Local(tiny_model("roberta"), Weights(floating(tiny_model("roberta"))), small_task.word_ids)
    batch = small_task.batch(0, 4, 0)
    scores = Local(models[0], Weights(tuned[0]), small_task.word_ids).score(batch, [UNPERTURBED])[0]
    torch.testing.assert_close(scores, plain.score(batch, [UNPERTURBED])[0])
    for name, tensor in tuned[0].items():
        assert torch.equal(tensor, tuned[1][name])
        assert torch.equal(tensor, tuned[2][name]) is (".lora_B." in name)
    spread = torch.cat(
        [tensor.detach().flatten() for name, tensor in tuned[0].items() if "intermediate.dense.lora_A" in name]
    )
    assert float(spread.std()) == pytest.approx((3 * 16) ** -0.5, rel=0.2)


@pytest.mark.parametrize(
    ("targets", "linears"),
    [("attention", 4), ("attention+ffn", 6), ("all-linear", 6), ("query,value", 2), ("attention.output.dense", 1)],
)
def test_targets_choose_linears(targets, linears):
    tuned = Lora(rank=2, targets=targets).attach(tiny_model("roberta"), (), 0)
    assert len(tuned) == linears * 2 * 2  # two layers, A and B


def test_plain_peft_gives_the_exported_adapters_logits_merged_and_not(config, tmp_path, tiny_folder):
    train(dataclasses.replace(config, adapter=Lora(rank=2)), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (tmp_path / "adapter").iterdir()
    }
    base = transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder).eval()
    batch = run.task.prompts(["a warm and funny film"])
    before, ours = (one[:, run.task.word_ids] for one in (at_mask(base, batch), at_mask(run.model, batch)))
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(at_mask(loaded, batch)[:, run.task.word_ids], ours, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits_of(run, ["a warm and funny film"]), ours, atol=1e-5, rtol=1e-5)
    assert (before - ours).abs().max() > 1e-4  # it does something
    export(run, tmp_path / "merged", merge=True)
    merged = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(at_mask(merged, batch)[:, run.task.word_ids], ours, atol=1e-5, rtol=1e-5)
    assert not any("lora" in name or "base_layer" in name for name, _ in merged.named_parameters())


@torch.no_grad()
def at_mask(model, batch):
    return model(**batch.inputs).logits[range(len(batch)), batch.mask_positions]


def test_an_existing_adapter_is_the_start(config, tmp_path, tiny_folder):
    base = transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder)
    made = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["query", "value"]))
    for name, tensor in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.1)
    made.save_pretrained(str(tmp_path / "theirs"))
    config = dataclasses.replace(config, adapter=Lora(start=str(tmp_path / "theirs")))
    run = Run(config, RunFolder(tmp_path / "none"))
    assert len(run.weights.names) == 2 * 2 * 2
    batch = run.task.prompts(["a warm and funny film"])
    torch.testing.assert_close(at_mask(run.model, batch), at_mask(made.eval(), batch), atol=1e-5, rtol=1e-5)
    result = train(config, tmp_path / "run")
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights
    with open(tmp_path / "theirs" / "adapter_model.safetensors", "r+b") as file:  # another adapter in its place
        file.seek(-4, 2)
        file.write(b"\x00\x00\x00\x01")
    with pytest.raises(Exception, match="began with another adapter"):
        tuned_run(tmp_path / "run", "final", snapshots=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": "quary"}, r"'quary' matches no linear.*dense, key, query, value.*did you mean 'query'"),
        ({"rank": 17}, r"rank is 17; linear 'roberta.encoder.layer.0.attention.self.query' is only 16 wide"),
        ({"rank": 0}, "adapter.rank is 0"),
        ({"alpha": 0.0}, "adapter.alpha is 0.0"),
        ({"dropout": 1.0}, "adapter.dropout is 1.0"),
        ({"start": "nowhere"}, "'nowhere' has no adapter_config.json"),
    ],
)
def test_a_lora_that_cannot_be_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        Lora(**options).attach(tiny_model("roberta"), (), 0)


def test_an_adapter_of_another_model_or_half_written_is_refused(config, tmp_path):
    train(dataclasses.replace(config, adapter=Lora(rank=2)), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "made")
    start = Lora(start=str(tmp_path / "made"))
    with pytest.raises(InputError, match=r"does not fit the model|was made for another model"):
        start.attach(tiny_model("distilbert"), (), 0)
    narrow = tiny_model("roberta")
    narrow.config.intermediate_size = 12
    with pytest.raises(InputError, match="was made for another model"):
        start.attach(transformers.AutoModelForMaskedLM.from_config(narrow.config), (), 0)
    weights = (tmp_path / "made" / "adapter_model.safetensors").read_bytes()
    (tmp_path / "made" / "adapter_model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="is damaged"):
        start.attach(tiny_model("roberta"), (), 0)
    (tmp_path / "made" / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        start.attach(tiny_model("roberta"), (), 0)
    (tmp_path / "made" / "adapter_model.safetensors").write_bytes(weights)
    (tmp_path / "made" / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        start.attach(tiny_model("roberta"), (), 0)


# Prefix


def test_a_prefix_begins_with_the_activations_of_real_tokens(tokenizer):
    """Attending to a prefix made of the very tokens before it is attending to those tokens."""
    model = tiny_model("roberta")
    tuned = Prefix(tokens=3).attach(model, (), 0)
    assert {tuple(tensor.shape) for tensor in tuned.values()} == {(2, 3, 8)}
    other = Prefix(tokens=3).attach(tiny_model("roberta"), (), 1)
    assert not torch.equal(
        tuned["roberta.encoder.layer.0.attention.self.prefix_keys"],
        other["roberta.encoder.layer.0.attention.self.prefix_keys"],
    )
    values = tuned["roberta.encoder.layer.0.attention.self.prefix_values"].detach()
    layer = model.roberta.encoder.layer[0].attention.self
    assert float(values.std()) < 10 * float(layer.value.weight.detach().std())  # of the size of activations, not noise


def test_a_prefix_is_attended_to_by_hand(small_task):
    """One layer's attention with a prefix equals softmax over prefix and tokens, padding left out."""
    model = tiny_model("bert")
    Prefix(tokens=2).attach(model, (), 0)
    layer = model.bert.encoder.layer[0].attention.self
    hidden = torch.randn(2, 4, 16)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])[:, None, None, :].expand(2, 1, 4, 4)
    with torch.no_grad():
        ours = layer(hidden, attention_mask=mask)[0]
        shape = (2, 4, 2, 8)
        query, key, value = (part(hidden).view(shape).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
        key = torch.cat([layer.prefix_keys[None].expand(2, -1, -1, -1), key], dim=2)
        value = torch.cat([layer.prefix_values[None].expand(2, -1, -1, -1), value], dim=2)
        scores = query @ key.transpose(2, 3) / 8**0.5
        scores[:, :, :, 2:].masked_fill_(~mask, float("-inf"))
        expected = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(2, 4, 16)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_a_model_without_a_prefix_is_not_touched_by_one_that_has(small_task):
    plain = tiny_model("roberta")
    batch = small_task.batch(0, 4, 0)
    before = at_mask(plain, batch)
    Prefix(tokens=3).attach(tiny_model("roberta"), (), 0)
    assert torch.equal(at_mask(plain, batch), before)


def test_the_start_of_a_prefix_stands_in_the_journal(config, tmp_path):
    """Activations differ in their last bits from machine to machine; the journal's own start counts."""
    config = dataclasses.replace(config, adapter=Prefix(tokens=3))
    train(config, tmp_path / "run")
    header = read_journal(tmp_path / "run" / "journal").header
    run = Run(config, RunFolder(tmp_path / "none"))
    stored = unpacked(header["start_tensors"], run.weights.tensors)
    for name, tensor in run.weights.tensors.items():
        assert torch.equal(stored[name], tensor)
    with torch.no_grad():
        next(iter(run.weights.tensors.values())).add_(1e-3)
    begin_with(run, read_journal(tmp_path / "run" / "journal"))
    assert run.weights.digest() == header["start"]


def test_packing_keeps_bfloat16_bits():
    tensors = rounded_start({"a": torch.randn(3, 4, 5), "b": torch.randn(7, 1)})
    for name, tensor in unpacked(json.loads(json.dumps(packed(tensors))), tensors).items():
        assert torch.equal(tensor, tensors[name])


def test_a_prefix_is_saved_under_the_models_names(config, tmp_path):
    from safetensors.torch import load_file

    train(dataclasses.replace(config, adapter=Prefix(tokens=3)), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "prefix.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in run.weights.tensors.items())
    assert json.loads((tmp_path / "saved" / "prefix.json").read_text())["tokens"] == 3
    with pytest.raises(InputError, match="--merge is for LoRA"):
        export(run, tmp_path / "merged", merge=True)


# Choosing among the model's own


@pytest.mark.parametrize(
    ("tune", "which"),
    [
        ("all", lambda name: True),
        ("biases", lambda name: name.endswith("bias")),
        ("norms", lambda name: "LayerNorm" in name or "layer_norm" in name),
        ("head", lambda name: name.startswith("lm_head.")),
        ("last:1", lambda name: ".layer.1." in name),
        ("last:2", lambda name: ".layer." in name),
        ("*.attention.*", lambda name: ".attention." in name),
        ("biases, *.query.weight", lambda name: name.endswith(("bias", "query.weight"))),
    ],
)
def test_what_is_tuned_can_be_chosen(tune, which):
    model = tiny_model("roberta")
    chosen = set(Full(tune).attach(model, (), 0))
    assert chosen == {name for name in floating(model) if which(name)}
    assert chosen


@pytest.mark.parametrize(
    ("tune", "said"),
    [("*.attn.*", "matches no weight; the model has roberta"), ("last:3", "the model has 2 layers"), (" ", "is empty")],
)
def test_a_choice_that_matches_nothing_is_refused(tune, said):
    with pytest.raises(InputError, match=said):
        Full(tune).attach(tiny_model("roberta"), (), 0)


def test_what_is_not_chosen_stays(config, tmp_path):
    train(dataclasses.replace(config, adapter=Full("biases")), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    base = Run(config, RunFolder(tmp_path / "none")).model
    for name, tensor in base.named_parameters():
        assert torch.equal(tensor, run.model.get_parameter(name)) is not name.endswith("bias"), name
    run.task.use(drawn_data(config))
    assert evaluate(run)[0].examples == 8

"""What a configuration or a journal asks for is bounded by the model before anything is made."""

import base64
import dataclasses
import json
import resource
import zlib
from types import SimpleNamespace

import pytest
import torch

from noback import Full, InputError, Lora, Prefix, RunConfig, TwoSided, tuned_run
from noback.adapters import model_limit
from noback.errors import DamagedError
from noback.folder import RunFolder
from noback.journal import Contents
from noback.replaying import begin_with, header
from noback.run import Run
from noback.tasks import Task
from noback.tasks.spec import spec_of
from noback.tensor_bytes import packed, unpacked
from noback.weights import Weights
from tests.conftest import tiny_causal, tiny_model

peft = pytest.importorskip("peft")
HUGE = 10**9


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(model=str(tiny_folder), data=str(data_folder), steps=2, batch=4)


def peak() -> int:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# Adapters


@pytest.mark.parametrize(
    ("model", "most"), [(tiny_model("roberta"), 64), (tiny_model("bert"), 64), (tiny_causal("llama"), 160)]
)
def test_a_prefix_has_no_more_tokens_than_the_model_takes(model, most):
    before = peak()
    for tokens in (most + 1, 2**16):
        with pytest.raises(InputError, match=f"adapter.tokens is {tokens}; the model does not take more than {most}"):
            Prefix(tokens=tokens).attach(model, (), 0)
    assert peak() - before < 500
    assert Prefix(tokens=most).attach(model, (), 0)


def test_a_model_that_names_no_positions_takes_as_many_as_large_ones_do():
    assert model_limit(SimpleNamespace(config=SimpleNamespace())) == 2**16


def test_a_huge_rank_is_refused():
    with pytest.raises(InputError, match=f"rank is {HUGE}; linear .* is only 16 wide"):
        Lora(rank=HUGE).attach(tiny_model("roberta"), (), 0)


@pytest.fixture
def adapter(tmp_path):
    """Saves an adapter of a tiny model with entries of its configuration changed, to begin with."""
    made = peft.get_peft_model(tiny_model("roberta"), peft.LoraConfig(r=3, target_modules=["query", "value"]))
    made.save_pretrained(str(tmp_path / "adapter"))
    path = tmp_path / "adapter" / "adapter_config.json"

    def change(**entries):
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
        return Lora(start=str(tmp_path / "adapter"))

    return change


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"r": HUGE}, "has rank 1000000000; expected a whole number up to 16, as its widest linear has"),
        ({"rank_pattern": {"query": HUGE}}, "has rank 1000000000"),
        ({"r": [3]}, r"has rank \[3\]"),
        ({"rank_pattern": {"(q+)+y": 3}}, r"to '\(q\+\)\+y'; expected names of linears"),
        ({"alpha_pattern": {".*.*.*y": 3}}, "expected names of linears"),
        ({"rank_pattern": [3]}, "that is no table"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "uses megatron_config"),
        ({"layer_replication": [[0, HUGE]]}, "uses layer_replication"),
        ({"target_parameters": ["a"]}, "uses target_parameters"),
        ({"use_dora": True}, "uses use_dora"),
    ],
)
def test_an_adapters_file_asks_for_plain_lora_of_the_models_size(entries, said, adapter):
    with pytest.raises(InputError, match=said):
        adapter(**entries).attach(tiny_model("roberta"), (), 0)


def test_an_adapters_targets_are_its_weights_own_and_no_pattern_is_searched(adapter):
    """A pattern that backtracks for years: were it searched, this would not end."""
    pattern = r"roberta\.((\w|\.|[a-z])+)+\.(query|value)!|.*\.(query|value)"
    tuned = adapter(target_modules=pattern).attach(tiny_model("roberta"), (), 0)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in tuned} == {"query", "value"}
    assert len(tuned) == 2 * 2 * 2


@pytest.mark.parametrize("word", ["last:" + "9" * 5000, "last:" + "9" * 9, "*a" * 200 + "!"])
def test_words_of_tune_that_ask_for_too_much_are_refused(word):
    with pytest.raises(InputError, match=r"adapter\.tune"):
        Full(tune=word).attach(tiny_model("roberta"), (), 0)


def test_directions_are_bounded():
    with pytest.raises(InputError, match=r"directions is 1000000000; expected .* at most 65,536"):
        TwoSided(directions=HUGE)


# Tasks


@pytest.mark.parametrize("tokens", [160, HUGE])
def test_an_answer_is_no_longer_than_the_model_takes(tokens, tokenizer):
    table = {"name": "own", "prompt": "{text}", "label": "", "max_new_tokens": tokens, "max_length": 10**12}
    with pytest.raises(InputError, match=f"max_new_tokens of task 'own' is {tokens}; the model takes 160 tokens"):
        Task(spec_of(table, "own.toml"), tokenizer, 160)


def test_a_prompt_is_no_longer_than_the_model_takes(reviews_spec, tokenizer):
    task = Task(dataclasses.replace(reviews_spec, max_length=10**12), tokenizer, 64)
    assert task.prompts(["warm " * 1000]).inputs["input_ids"].shape == (1, 64)


@pytest.mark.parametrize("text", ["steps = " + "9" * 5000, "a = " + "[" * 5000], ids=["digits", "deep"])
@pytest.mark.parametrize("flag", ["--config", "--task"])
def test_numbers_and_tables_without_end_are_refused_in_a_sentence(text, flag, tmp_path, noback):
    (tmp_path / "own.toml").write_text(text)
    code, _, err = noback("train", flag, tmp_path / "own.toml", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "own.toml' is not TOML" in err or "own.toml' is nested too deeply" in err


# The start that a journal holds


def entry(data: bytes, *shape: int) -> dict:
    return {"shape": list(shape), "bytes": base64.b64encode(data).decode()}


LIKE = {"a": torch.zeros(3, 4)}
SOUND = packed(LIKE)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {**SOUND, "b": SOUND["a"]},
        {"b": SOUND["a"]},
        [],
        {"a": 5},
        {"a": {"shape": [3, 4]}},
        {"a": {**SOUND["a"], "shape": [4, 3]}},
        {"a": {**SOUND["a"], "shape": [12]}},
        {"a": {**SOUND["a"], "bytes": 7}},
        {"a": {**SOUND["a"], "bytes": "§§§"}},
        {"a": entry(b"no zlib", 3, 4)},
        {"a": entry(zlib.compress(bytes(22)), 3, 4)},
        {"a": entry(zlib.compress(bytes(25)), 3, 4)},
        {"a": entry(zlib.compress(bytes(24))[:-5], 3, 4)},
        {"a": entry(zlib.compress(bytes(24)) + b"more", 3, 4)},
    ],
)
def test_a_start_of_other_names_shapes_or_bytes_is_damaged(table):
    with pytest.raises(DamagedError, match="start that the journal holds"):
        unpacked(table, LIKE)


def test_a_start_that_would_inflate_is_refused_at_its_own_size():
    bomb = zlib.compress(bytes(2**30), 9)  # a MB, of a GB
    before = peak()
    with pytest.raises(DamagedError, match="does not have 24 bytes"):
        unpacked({"a": entry(bomb, 3, 4)}, LIKE)
    assert peak() - before < 200


def test_a_start_in_the_header_of_a_run_that_makes_its_own_is_not_taken(config, tmp_path):
    run = Run(config, RunFolder(tmp_path))
    other = {name: torch.ones_like(tensor) for name, tensor in run.weights.tensors.items()}
    before, forged = run.weights.digest(), {**header_of(run), "start_tensors": packed(other)}
    begin_with(run, Contents(forged, [], 0, 0))
    assert run.weights.digest() == before


def header_of(run):
    run.task.add("train", [])
    return json.loads(json.dumps(header(run)))


# Weights


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": torch.ones(3, 2)}, r"tensor 'b' .* is not there; expected torch.float32 \(4,\)"),
        ({"a": torch.ones(3, 2), "b": torch.ones(4), "c": torch.ones(1)}, "tensor 'c' .* expected not there"),
        ({"a": torch.ones(2), "b": torch.ones(4)}, r"'a' .* is torch.float32 \(2,\); expected torch.float32 \(3, 2\)"),
        ({"a": torch.ones(3, 2), "b": torch.ones(())}, "tensor 'b'"),
        ({"a": torch.ones(3, 2).bfloat16(), "b": torch.ones(4)}, "'a' .* is torch.bfloat16"),
    ],
)
def test_weights_load_their_own_kind_alone_and_all_or_none(tensors, said):
    weights = Weights({"a": torch.zeros(3, 2), "b": torch.zeros(4)})
    with pytest.raises(DamagedError, match=said):
        weights.load(tensors)
    assert not any(tensor.any() for tensor in weights.tensors.values())


def test_a_prefix_that_a_journal_asks_for_is_refused_in_a_sentence(config, tmp_path, noback):
    from noback import train
    from noback.journal import Journal, read_journal

    train(dataclasses.replace(config, adapter=Prefix(tokens=3), steps=1), tmp_path / "run")
    forged = dict(read_journal(tmp_path / "run" / "journal").header)
    forged["config"] = {**forged["config"], "adapter": {"kind": "prefix", "tokens": HUGE}}
    Journal.create(tmp_path / "forged", forged)
    code, _, err = noback("replay", tmp_path / "forged", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "adapter.tokens is 1000000000" in err
    assert tuned_run(tmp_path / "run", "final")[1] == 1

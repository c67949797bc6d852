"""Weights that are replayed and written tensor by tensor are, byte for byte, those of the whole model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from noback import Head, InputError, NobackError, OneSided, RunConfig, Sgd, TwoSided, export, train, tuned_run
from noback.cli.main import main
from noback.directions import KeptColumns
from noback.engines import open_model, shards, stored
from noback.engines.shards import even_files, usual_files, write_index
from noback.engines.stored import open_stored
from noback.streaming import export_streamed
from noback.tensor_bytes import digest
from noback.values import Move, Term
from tests.conftest import tiny_causal, tiny_model

MASKED, CAUSAL = ("roberta", "bert"), ("opt", "llama", "qwen2", "gpt2")
ASKED = {"template": "{sentence} It was", "words": {"0": "bad", "1": "good"}}


def saved(folder, kind, tokenizer, *, tied=True, dtype=torch.float32, **how):
    make = tiny_causal if kind in CAUSAL or kind == "mixtral" else tiny_model
    make(kind, tied=tied, dtype=dtype).save_pretrained(folder, **how)
    tokenizer.save_pretrained(folder)
    return folder


def trained(model, data, out, **options):
    settings = {"steps": 5, "estimator": TwoSided(eps=1e-2, directions=2), **options}
    config = RunConfig(
        model=str(model), data=str(data), batch=4, eval_every=5, test_limit=4, rule=Sgd(lr=1e-2, weight_decay=0.1),
        **settings,
    )  # fmt: skip
    train(config, out)
    return out


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*MASKED, *CAUSAL])
def test_a_streamed_export_is_the_export_byte_by_byte(kind, tied, dtype, tokenizer, data_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_PIECE", 1000)  # elements: most tensors come in several pieces
    base = saved(tmp_path / "base", kind, tokenizer, tied=tied)
    task = "It was {mask}. {sentence}" if kind in MASKED else "{sentence} It was"
    run = trained(base, data_folder, tmp_path / "run", dtype=dtype, template=task, words={"0": "bad", "1": "good"})
    whole, step = tuned_run(run, "final", snapshots=False)
    export(whole, tmp_path / "whole")
    told = export_streamed(run, tmp_path / "streamed", "final")
    assert files_in(tmp_path / "streamed") == files_in(tmp_path / "whole")
    assert told == (step, whole.weights.digest())
    assert whole.weights.digest() != whole.start


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
@pytest.mark.parametrize("noise", ["rank1", "low_rank", KeptColumns(period=2)], ids=str)
def test_so_it_is_of_low_rank_directions_of_each_example(kind, noise, tokenizer, data_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_PIECE", 1000)
    base = saved(tmp_path / "base", kind, tokenizer)
    task = {"template": "It was {mask}. {sentence}" if kind in MASKED else "{sentence} It was", "words": ASKED["words"]}
    run = trained(base, data_folder, tmp_path / "run", noise=noise, directions_per="example", dtype="bfloat16", **task)
    whole, step = tuned_run(run, "final", snapshots=False)
    assert export_streamed(run, tmp_path / "streamed", "final") == (step, whole.weights.digest())
    assert whole.weights.digest() != whole.start


def test_base_weights_have_the_digest_of_the_whole_model(tokenizer, tmp_path):
    base = saved(tmp_path / "base", "llama", tokenizer, dtype=torch.bfloat16)
    _, read = open_stored(str(base), "float32", causal=True)
    model = open_model(str(base), "float32", causal=True).model
    assert read.digest(read.shapes) == digest(dict(model.named_parameters()))


@pytest.fixture
def run(tokenizer, data_folder, tmp_path):
    """A run of a tiny Llama whose files are several."""
    base = saved(tmp_path / "base", "llama", tokenizer, tied=False, max_shard_size="600KB")
    assert len(list(base.glob("*.safetensors"))) > 1
    return trained(base, data_folder, tmp_path / "run", **ASKED)


def test_parts_that_several_machines_write_are_one_model(run, tmp_path):
    whole, _ = tuned_run(run)
    for part in (2, 3, 1):
        assert export_streamed(run, tmp_path / "parts", part=(part, 3)).weights is None
    sizes = [path.stat().st_size for path in sorted((tmp_path / "parts").glob("model-*-of-00003.safetensors"))]
    assert len(sizes) == 3
    assert max(sizes) < 0.5 * sum(sizes)
    opened = open_model(str(tmp_path / "parts"), "float32", causal=True).model
    assert digest(dict(opened.named_parameters())) == whole.weights.digest()


def test_parts_of_another_step_are_refused(run, tmp_path):
    export_streamed(run, tmp_path / "parts", "final", part=(1, 2))
    before = files_in(tmp_path / "parts")
    for at, part in (("1", (2, 2)), ("final", (2, 3)), ("final", (1, 2))):
        with pytest.raises(InputError, match="holds something else than the other parts of this export"):
            export_streamed(run, tmp_path / "parts", at, part=part)
    assert files_in(tmp_path / "parts") == before


@pytest.mark.parametrize("count", [1, 2, 5, 21])
def test_every_tensor_is_in_one_of_as_many_files_as_are_asked_for(count):
    model = tiny_causal("llama", tied=False)
    plan = even_files(model, count)
    assert list(plan) == [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    assert [name for inside in plan.values() for name, _ in inside] == list(model.state_dict())


def test_more_parts_than_tensors_are_refused():
    with pytest.raises(InputError, match="expected 1 to 21 parts, found 22"):
        even_files(tiny_causal("llama", tied=False), 22)


@pytest.mark.parametrize("tied", [True, False])
def test_files_and_index_are_cut_as_the_library_cuts_them(tied, tmp_path):
    model = tiny_causal("llama", tied=tied)
    model.save_pretrained(tmp_path, max_shard_size=600_000)
    plan = usual_files(model, 600_000)
    assert {file.name for file in tmp_path.glob("*.safetensors")} == set(plan)
    before = (tmp_path / stored.INDEX).read_bytes()
    write_index(tmp_path, plan, model, {})
    assert (tmp_path / stored.INDEX).read_bytes() == before


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_tensor_that_is_stored_twice_is_one_where_both_are_the_same(same, tokenizer, tmp_path):
    base = saved(tmp_path / "base", "llama", tokenizer)
    tensors = load_file(base / stored.ONE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + (0 if same else 1)
    save_file(tensors, base / stored.ONE, metadata={"format": "pt"})
    opened, read = open_stored(str(base), "float32", causal=True)
    whole = dict(open_model(str(base), "float32", causal=True).model.named_parameters())
    assert read.shapes.keys() == whole.keys() == set(shards.written_names(opened.model).values())
    assert ("lm_head.weight" in whole) is not same
    assert read.digest(read.shapes) == digest(whole)


def test_a_model_that_is_stored_in_another_form_is_refused(tokenizer, tmp_path):
    base = saved(tmp_path / "base", "mixtral", tokenizer)
    with pytest.raises(InputError, match="stored in another form than it is used in"):
        open_stored(str(base), "float32", causal=True)


def test_another_base_is_refused_and_nothing_is_written(run, tokenizer, tmp_path):
    other = saved(tmp_path / "other", "llama", tokenizer, tied=False, dtype=torch.bfloat16)
    with pytest.raises(InputError, match="was made from other base weights"):
        export_streamed(run, tmp_path / "out", model=str(other))
    assert not (tmp_path / "out").exists()


def test_weights_that_are_no_numbers_are_not_written(tokenizer, data_folder, tmp_path, monkeypatch):
    base = saved(tmp_path / "base", "llama", tokenizer)
    run = trained(base, data_folder, tmp_path / "run", **ASKED)
    monkeypatch.setattr("noback.streaming.recorded_move", lambda *_, noise: Move((Term(1, 1e38), Term(2, 1e38))))
    with pytest.raises(NobackError, match=r"tensor 'lm_head|tensor 'model.*holds values that are no numbers"):
        export_streamed(run, tmp_path / "out", "final")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--part", "0/2"], "--part is '0/2'; expected I/N with I from 1 to N"),
        (["--part", "3/2"], "--part is '3/2'; expected I/N with I from 1 to N"),
        (["--part", "2"], "--part is '2'; expected I/N with I from 1 to N"),
        (["--stream", "--merge"], "--merge is for LoRA and --stream for runs that tune the model's own weights"),
    ],
)
def test_flags_that_make_no_sense_are_one_sentence(flags, sentence, tmp_path, capsys):
    assert main(["export", str(tmp_path / "none"), str(tmp_path / "out"), *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_a_small_adapter_is_not_streamed(tiny_folder, data_folder, tmp_path):
    run = trained(tiny_folder, data_folder, tmp_path / "run", adapter=Head())
    with pytest.raises(InputError, match="a run with adapter 'head' cannot be streamed"):
        export_streamed(run, tmp_path / "out")


def test_a_model_is_exported_without_being_in_memory(tokenizer, data_folder, tmp_path):
    peaks, sizes = [], []
    for width in (16, 1280):
        base, run, out = (tmp_path / f"{name}-{width}" for name in ("base", "run", "out"))
        config = transformers.LlamaConfig(
            vocab_size=16384, pad_token_id=1, bos_token_id=0, eos_token_id=2, tie_word_embeddings=False,
            hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=2,
        )  # fmt: skip
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
        tokenizer.save_pretrained(base)
        trained(base, data_folder, run, **ASKED, steps=1, estimator=OneSided(eps=1e-2))
        told = subprocess.run(
            [sys.executable, "-c", MEASURED, "replay", run, out, "--stream", "--json"], capture_output=True, check=True
        )
        result, peak = map(json.loads, told.stdout.splitlines())
        assert result["weights"] == tuned_run(run)[0].weights.digest()
        peaks.append(peak)
        sizes.append((out / stored.ONE).stat().st_size / 2**20)
    assert sizes[1] - sizes[0] > 200
    assert peaks[1] - peaks[0] < 64  # MB


MEASURED = r"""
import re, sys
from pathlib import Path
from noback.cli.main import main
assert main(sys.argv[1:]) == 0
print(int(re.search("VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""

"""Weights that are replayed and written tensor by tensor are, byte for byte, those of the whole model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from noback import InputError, NobackError, OneSided, RunConfig, Sgd, TwoSided, export, train, tuned_run
from noback.engines import open_model, shards, stored
from noback.engines.shards import even_files, usual_files, write_index
from noback.engines.stored import open_stored
from noback.streaming import export_streamed
from noback.tensor_bytes import digest
from tests.conftest import tiny_causal, tiny_model

MASKED, CAUSAL = ("roberta", "bert"), ("opt", "llama", "qwen2", "gpt2")


def saved(folder, kind, tokenizer, *, tied=True, dtype=torch.float32, **how):
    make = tiny_causal if kind in CAUSAL or kind == "mixtral" else tiny_model
    make(kind, tied=tied, dtype=dtype).save_pretrained(folder, **how)
    tokenizer.save_pretrained(folder)
    return folder


def trained(model, data, out, **options):
    config = RunConfig(
        model=str(model), data=str(data), steps=5, batch=4, eval_every=5, test_limit=4,
        rule=Sgd(lr=1e-2, weight_decay=0.1), estimator=TwoSided(eps=1e-2, directions=2), **options,
    )  # fmt: skip
    train(config, out)
    return out


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*MASKED, *CAUSAL])
def test_a_streamed_export_is_the_export_byte_by_byte(
    kind, tied, dtype, tokenizer, data_folder, tmp_path, monkeypatch
):
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


def test_base_weights_have_the_digest_of_the_whole_model(tokenizer, tmp_path):
    base = saved(tmp_path / "base", "llama", tokenizer, dtype=torch.bfloat16)
    _, read = open_stored(str(base), "float32", causal=True)
    model = open_model(str(base), "float32", causal=True).model
    assert read.digest(read.shapes) == digest(dict(model.named_parameters()))

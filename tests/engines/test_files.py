"""A model's files are judged before a library opens them: no pickle, no code, no wait, one sentence."""

import json
import os
import pickle
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file

from noback.cli.main import main
from noback.engines import loading, open_model
from noback.errors import InputError

INDEX = "model.safetensors.index.json"


class Evil:
    """What writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


@pytest.fixture
def no_pickle(monkeypatch):
    """Whoever reaches torch.load is found out; the test that asks for it fails."""
    opened = []
    monkeypatch.setattr(torch, "load", lambda path, *_, **__: opened.append(path))
    yield
    assert not opened


@pytest.fixture
def in_time():
    """A wait without end becomes an error."""

    def late(*_):
        raise AssertionError("the file was waited for")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def configure(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def split(folder, name):
    """Let an index name a file for all weights."""
    names = load_file(folder / "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, name)}))
    return folder / "model.safetensors"


def refused(folder, said):
    with pytest.raises(InputError, match=said) as error:
        open_model(str(folder), "float32")
    assert "\n" not in str(error.value)


# Pickles


def test_an_index_that_names_a_pickle_is_refused_before_it_is_opened(folder, tmp_path, no_pickle):
    split(folder, "weights.bin").unlink()
    (folder / "weights.bin").write_bytes(pickle.dumps(Evil(tmp_path / "written")))
    refused(folder, r"index\.json of model .* names the file 'weights.bin'; expected \.safetensors files")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("name", ["../other.safetensors", "/tmp/other.safetensors", "sub/other.safetensors", ".."])
def test_an_index_that_leads_out_of_the_folder_is_refused(name, folder):
    split(folder, name).rename(folder.parent / "other.safetensors")
    refused(folder, "in the model's own folder")


def test_an_index_of_safetensors_in_the_folder_is_opened(folder):
    before = open_model(str(folder), "float32").model.state_dict()
    split(folder, "part.safetensors").rename(folder / "part.safetensors")
    after = open_model(str(folder), "float32").model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("table", [[], {}, {"weight_map": [1]}, {"weight_map": {"a": 5}}])
def test_an_index_of_another_form_is_refused(table, folder):
    (folder / INDEX).write_text(json.dumps(table))
    refused(folder, INDEX)


def test_a_configuration_that_names_a_pickle_for_the_weights_is_refused(folder, no_pickle):
    configure(folder, transformers_weights="adapter_model.bin")
    (folder / "adapter_model.bin").write_bytes(b"")
    refused(folder, "'transformers_weights' in config.json .* names the file 'adapter_model.bin'")


def test_a_model_with_an_adapter_in_its_folder_is_refused(folder, no_pickle):
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x", "r": 2}')
    (folder / "adapter_model.bin").write_bytes(b"")
    refused(folder, "holds an adapter")


def test_pickles_beside_the_weights_are_never_opened(folder, tmp_path, no_pickle):
    for name in ("training_args.bin", "pytorch_model.bin", "optimizer.pt", "vocab.pkl", "tokenizer.model.pkl"):
        (folder / name).write_bytes(pickle.dumps(Evil(tmp_path / "written")))
    open_model(str(folder), "float32")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_that_names_code_of_the_hub_is_refused(key, folder):
    configure(folder, **{key: "someone/kernel"})
    refused(folder, "is 'someone/kernel', code of the hub, which is not run")


# The hub


@pytest.fixture
def cached(folder, tmp_path, monkeypatch):
    """The folder as a model of the hub, in its cache and without a network."""
    import huggingface_hub.constants

    cache = tmp_path / "hub"
    commit = "0" * 40
    home = cache / "models--some--one"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    shutil.copytree(folder, home / "snapshots" / commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(loading, "_hub_options", lambda _: {"local_files_only": True, "cache_dir": str(cache)})
    return home / "snapshots" / commit


def test_a_model_of_the_hubs_cache_is_opened(cached):
    assert open_model("some/one", "float32").config["model_type"] == "roberta"


def test_an_index_of_the_hubs_cache_is_judged_too(cached, no_pickle):
    split(cached, "weights.bin").rename(cached / "weights.bin")
    refused("some/one", "names the file 'weights.bin'")


# Files that are none


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name, folder, in_time):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, f"'{name}' of model .* is no plain file")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_in_place_of_a_file_is_refused(name, folder):
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, "model")


def test_a_weights_file_that_was_cut_short_is_refused(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    refused(folder, "model.safetensors is damaged")


# Configurations that are none


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "5", "[" * 100_000, '{"a":' * 50 + "1" + "}" * 50, '{"vocab_size": ' + "9" * 5000 + "}", "\xff"],
    ids=["empty", "list", "number", "deep", "tables", "digits", "latin"],
)
def test_a_configuration_that_is_no_table_is_refused(text, folder):
    (folder / "config.json").write_text(text, encoding="latin-1")
    refused(folder, "config.json")


@pytest.mark.parametrize(
    "entries",
    [
        {"hidden_size": [16]},
        {"num_attention_heads": "two"},
        {"vocab_size": int("9" * 400)},
        {"hidden_size": 10**9},
        {"architectures": 5},
        {"quantization_config": [1]},
        {"model_type": {"a": 1}},
    ],
    ids=lambda entries: next(iter(entries)),
)
def test_entries_of_another_kind_are_refused_in_a_sentence(entries, folder):
    configure(folder, **entries)
    refused(folder, "model")


def test_weights_of_other_shapes_are_said_in_one_line(folder, data_folder, tmp_path, capsys):
    configure(folder, intermediate_size=10**9)
    code = main(
        ["train", "--model", str(folder), "--data", str(data_folder), "--steps", "1", "--out", str(tmp_path / "run")]
    )
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert "its weights do not have the shapes that its config.json names" in err


@pytest.mark.parametrize("layers", [10**5, int("9" * 400)])
def test_more_layers_than_tensors_are_refused_before_they_are_made(layers, folder, in_time):
    configure(folder, num_hidden_layers=layers)
    refused(folder, "'num_hidden_layers' in config.json .* expected 1024 at most")


# Tokenizers


@pytest.mark.parametrize(
    "entries",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},  # its library panics
        {"model": {"type": "Unigram", "unk_id": 9, "vocab": []}},
        {"model": 5},
    ],
)
def test_a_tokenizer_that_is_none_is_refused_in_a_sentence(entries, folder):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    refused(folder, "the tokenizer of model .* cannot be opened")


def test_a_tokenizer_of_several_is_refused(folder):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "RagTokenizer"}))
    refused(folder, "the tokenizer of model .* is a RagTokenizer")


def test_a_weights_file_may_hold_more_than_the_model_needs(folder):
    """What is judged is what could do harm."""
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "more": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    open_model(str(folder), "float32")

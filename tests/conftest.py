"""Small models and data that every test can build in a moment."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest
import torch
import transformers

from noback.config import RunConfig
from noback.embedded import MODELS
from noback.engines import Local, Reference
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import spec_of
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights

# Tests run side by side, one to a core; a second thread in each would only wait for the other's.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

_AS_IT_IS = RunConfig.__init__


@functools.wraps(_AS_IT_IS)
def _of_words(self, *values, **options):
    _AS_IT_IS(self, *values, **{"readout": None, **options})


# Most tests are about something else than the readout, which is the default: what they leave out is `readout = "words"`
# in this process. Those of the default itself take `as_people_have_it`.
RunConfig.__init__ = _of_words


@pytest.fixture
def as_people_have_it(monkeypatch):
    """The configuration's own defaults, the readout among them."""
    monkeypatch.setattr(RunConfig, "__init__", _AS_IT_IS)


def pytest_configure(config):
    """Only `-m gpu` sees a GPU: a run goes there by itself, and the other tests are about the CPU."""
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config, items):
    """Servers are started only by `-m server`: each takes 20 s and 2 GB."""
    if "server" not in config.option.markexpr:
        servers = [item for item in items if item.get_closest_marker("server")]
        items[:] = [item for item in items if item not in servers]
        config.hook.pytest_deselected(items=servers)


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
POSITIVE = [
    "a warm and funny film",
    "well played, clever and moving",
    "charming from start to end",
    "a rich, lively story",
]
NEGATIVE = [
    "dull and far too long",
    "flat jokes and a thin plot",
    "slow, weak and forgettable",
    "it drags and never works",
]


@pytest.fixture(scope="session")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(MODELS["mini"])


def tiny_model(kind: str, *, tied: bool = True, vocab: int = 16384, dtype: torch.dtype = torch.float32):
    """A random masked LM of an architecture, a few thousand weights apart from its embedding."""
    T = transformers
    shared = {"vocab_size": vocab, "pad_token_id": 1, "tie_word_embeddings": tied}
    configs = {
        "bert": lambda: T.BertConfig(**SIZES, **shared, max_position_embeddings=64),
        "roberta": lambda: T.RobertaConfig(**SIZES, **shared, max_position_embeddings=66, type_vocab_size=1),
        "distilbert": lambda: T.DistilBertConfig(
            dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=64, **shared
        ),
        "electra": lambda: T.ElectraConfig(**SIZES, **shared, embedding_size=12, max_position_embeddings=64),
        "modernbert": lambda: T.ModernBertConfig(
            **SIZES, **shared, max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2,
            bos_token_id=0, cls_token_id=0, eos_token_id=2, sep_token_id=2,
        ),
    }  # fmt: skip
    torch.manual_seed(7)
    config = configs[kind]()
    config._attn_implementation = "eager"
    return transformers.AutoModelForMaskedLM.from_config(config, dtype=dtype).eval()


def tiny_causal(kind: str, *, tied: bool = True, vocab: int = 16384, dtype: torch.dtype = torch.float32):
    """A random causal LM of an architecture, a few thousand weights apart from its embedding."""
    T = transformers
    shared = {"vocab_size": vocab, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": tied}
    sizes = {**SIZES, **shared, "max_position_embeddings": 160}
    grouped = {**sizes, "num_key_value_heads": 1, "head_dim": 8}
    configs = {
        "llama": lambda: T.LlamaConfig(**grouped),
        "opt": lambda: T.OPTConfig(
            hidden_size=16, word_embed_proj_dim=12, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24,
            max_position_embeddings=64, **shared,
        ),
        "qwen2": lambda: T.Qwen2Config(**{k: v for k, v in grouped.items() if k != "head_dim"}),
        "qwen3": lambda: T.Qwen3Config(**grouped),
        "gpt2": lambda: T.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **shared),
        "mistral": lambda: T.MistralConfig(**grouped, sliding_window=4),
        "gemma": lambda: T.GemmaConfig(**grouped),
        "phi": lambda: T.PhiConfig(**sizes),
        "falcon": lambda: T.FalconConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, multi_query=True, **shared
        ),
        "mixtral": lambda: T.MixtralConfig(**grouped, num_local_experts=4, num_experts_per_tok=2),
    }  # fmt: skip
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(configs[kind](), dtype=dtype).eval()


@pytest.fixture(scope="session")
def reviews_spec():
    return spec_of(
        {
            "name": "small",
            "template": "*cls**sent_0*_It_was*mask*.*sep+*",
            "words": {"0": "terrible", "1": "great"},
            "sentences": ["sentence"],
        },
        "small.toml",
    )


@pytest.fixture
def small_task(reviews_spec, tokenizer):
    task = Task(reviews_spec, tokenizer)
    examples = [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for name in ("train", "validation", "test"):
        task.add(name, examples)
    return task


def weights_of(model, noise: str = "normal") -> Weights:
    return Weights(dict(model.named_parameters()), noise)


def check_against_the_twin(model, weights: Weights, task: Task) -> None:
    """The local engine gives the scores of whole perturbed copies, its probes side by side."""
    points = [Move((Term(3, 1e-1),)), Move((Term(3, -1e-1),)), Move((Term(4, 5e-2), Term(3, 5e-2))), UNPERTURBED]
    batch, engine = task.batch(0, 5, 0), Local(model, weights, task.word_ids)
    fast, slow = (each.score(batch, points) for each in (engine, Reference(model, weights, task.word_ids)))
    assert not engine.point_by_point
    assert (slow[0] - slow[1]).abs().max() > 1e-6  # the tuned tensors are alive
    for ours, twins in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(spec) -> list[dict]:
    """Made-up rows for any task, with its labels, choices or answers."""
    rows = []
    for number in range(6):
        texts = {column: f"example {number} of {column}." for column in spec.columns}
        for label in spec.labels or ["0"]:
            row = {**texts, spec.label: label}
            if spec.answer == "text":
                del row[spec.label]
            if spec.answer == "choices":
                listed = len(spec.choices) == 1
                row |= {column: ["a cat", "a dog", "a bird"][: number % 2 + 2] for column in spec.choices if listed}
                row[spec.label] = ["a dog"] if listed else number % 2
            if spec.answer == "text":
                table, _, column = spec.label.partition(".")
                row |= {table: {column: ["a dog", "the dog"]} if column else "a dog"}
            rows.append(row)
    return rows


@pytest.fixture
def data_folder(tmp_path):
    """A folder with train, validation and test of eight sentences each."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"sentence": text, "label": 1} for text in POSITIVE] + [{"sentence": text, "label": 0} for text in NEGATIVE]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tokenizer):
    """A tiny RoBERTa with the embedded tokenizer as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model("roberta").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_causal_folder(tmp_path_factory, tokenizer):
    """A tiny Llama with the embedded tokenizer as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny-causal") / "model"
    tiny_causal("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def noback(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""
    from noback.cli.main import main

    def call(*arguments: object):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call

"""A readout in files: plain transformers gives noback's label logits with what was exported."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from noback import Full, Lora, Prefix, RunConfig, Sgd, TwoSided, evaluate, export
from noback.run import Run, drawn_data
from noback.training import train
from noback.tuned import tuned_run
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import tiny_causal, tiny_model

MODELS = {**dict.fromkeys(("roberta", "bert", "distilbert", "electra"), tiny_model),
          **dict.fromkeys(("llama", "opt", "gpt2"), tiny_causal)}  # fmt: skip
PROMPT = "An opinion: {sentence} It was"


@pytest.fixture
def make(tmp_path, tokenizer, data_folder):
    """A run at zero steps whose rows and tuned tensors are anything but zero."""

    def made(kind, *, tied=True, **options):
        MODELS[kind](kind, tied=tied).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        prompt = {"template": PROMPT, "words": "0= bad,1= good"} if MODELS[kind] is tiny_causal else {}
        config = RunConfig(
            model=str(tmp_path / "base"), data=str(data_folder), readout="exact", batch=4, **prompt, **options
        )
        run = Run(config)
        run.task.use(drawn_data(config))
        rows = run.readout.rows
        rows.take(np.random.RandomState(1).normal(size=(rows.shape.labels, rows.shape.columns)))
        run.weights.advance([Move((Term(3, 0.1),))])
        return run

    return made


def ours(run):
    return run.engine.score(run.batch(0), [UNPERTURBED])[0]


def theirs(model, run):
    batch = run.batch(0)
    with torch.no_grad():
        logits = model.eval()(**batch.inputs).logits
    return logits[torch.arange(len(batch)), batch.mask_positions][:, run.task.word_ids]


def loaded(folder, kind):
    auto = transformers.AutoModelForCausalLM if MODELS[kind] is tiny_causal else transformers.AutoModelForMaskedLM
    return auto.from_pretrained(folder)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", MODELS)
def test_plain_transformers_gives_the_label_logits_of_the_folder(make, tmp_path, kind, tied):
    run = make(kind, tied=tied)
    expected, before = ours(run), run.weights.digest()
    export(run, tmp_path / "out")
    model = loaded(tmp_path / "out", kind)
    torch.testing.assert_close(theirs(model, run), expected, atol=1e-5, rtol=1e-5)
    facts = json.loads((tmp_path / "out" / "readout.json").read_text())
    assert facts["untied"] is tied
    assert facts["token_ids"] == run.task.word_ids
    assert ("untied from the embeddings" in facts["note"]) is tied
    assert run.weights.digest() == before  # the run's own model is as it was
    assert run.model.config.tie_word_embeddings is tied
    assert torch.equal(ours(run), expected)
    embedding = model.get_input_embeddings().weight
    assert torch.equal(embedding, run.model.get_input_embeddings().weight)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # PEFT says so of GPT-2's linears and sets it
@pytest.mark.parametrize("kind", ["roberta", "llama", "opt", "gpt2"])
def test_a_merged_lora_holds_the_readout_in_its_rows(make, tmp_path, kind):
    run = make(kind, adapter=Lora(rank=2))
    expected = ours(run)
    export(run, tmp_path / "out", merge=True)
    torch.testing.assert_close(theirs(loaded(tmp_path / "out", kind), run), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("adapter", [Lora(rank=2), Prefix(tokens=2)], ids=["lora", "prefix"])
@pytest.mark.parametrize("kind", ["roberta", "llama"])
def test_beside_an_adapter_stand_the_rows_and_the_tokens_they_are_of(make, tmp_path, kind, adapter):
    run = make(kind, adapter=adapter)
    export(run, tmp_path / "out")
    stored, facts = (
        load_file(tmp_path / "out" / "readout.safetensors"),
        json.loads((tmp_path / "out" / "readout.json").read_text()),
    )
    values = torch.from_numpy(run.readout.rows.values())
    assert torch.equal(stored["rows"], values[:, :16])
    assert ("biases" in stored) is (kind == "roberta")
    assert (facts["token_ids"], facts["words"]) == (run.task.word_ids, run.task.texts)


def test_the_pages_lines_add_the_rows_of_an_adapters_folder(make, tmp_path):
    peft = pytest.importorskip("peft")
    run = make("roberta", adapter=Lora(rank=2))
    expected = ours(run)
    export(run, tmp_path / "out")
    model = peft.PeftModel.from_pretrained(loaded(tmp_path / "base", "roberta"), tmp_path / "out")
    stored, ids = load_file(tmp_path / "out" / "readout.safetensors"), run.task.word_ids
    decoder = model.get_output_embeddings()
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())
    with torch.no_grad():
        decoder.weight[ids] += stored["rows"]
        decoder.bias[ids] += stored["biases"]
    torch.testing.assert_close(theirs(model, run), expected, atol=1e-5, rtol=1e-5)


def test_a_trained_runs_folder_answers_as_its_export_does(tiny_folder, data_folder, tmp_path):
    config = RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=4, batch=4, eval_every=2, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2), readout="exact", adapter=Full(),
    )  # fmt: skip
    result = train(config, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    run, _ = tuned_run(tmp_path / "run")
    assert evaluate(run)[0].accuracy == result.best
    run.task.use(drawn_data(config))
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(theirs(model, run), ours(run), atol=1e-5, rtol=1e-5)

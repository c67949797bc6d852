"""The classification head: fresh by seed, probed like any weight, exported as an ordinary classifier."""

import dataclasses

import pytest
import torch
import transformers

from noback import Full, Head, InputError, RunConfig, Sgd, TwoSided, export, predict, train, tuned_run
from noback.engines import Local, Reference, open_classifier
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tensor_bytes import digest
from noback.values import UNPERTURBED, Move, Term
from noback.weights import Weights
from tests.conftest import NEGATIVE, POSITIVE, tiny_model

KINDS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
LABELS = ("0", "1")


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(
        model=str(tiny_folder), data=str(data_folder), steps=5, batch=4, rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2), adapter=Head(),
    )  # fmt: skip


@pytest.fixture
def saved(tmp_path, tokenizer):
    def save(kind):
        tiny_model(kind).save_pretrained(tmp_path / kind)
        tokenizer.save_pretrained(tmp_path / kind)
        return str(tmp_path / kind)

    return save


@pytest.mark.parametrize("kind", KINDS)
def test_probes_of_a_classifier_equal_whole_perturbed_copies(kind, saved, reviews_spec, tokenizer):
    model, _, fresh, _ = open_classifier(saved(kind), "float32", LABELS, 0)
    task = Task(reviews_spec, tokenizer, for_head=True)
    task.add("train", [Example((text,), gold) for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts])
    batch = task.batch(0, 5, 0)
    points = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),)), UNPERTURBED]
    for adapter in (Head(), Head(alone=True)):
        weights = Weights(adapter.attach(model, fresh, 0))
        fast, slow = (engine(model, weights, None).score(batch, points) for engine in (Local, Reference))
        assert (slow[0] - slow[1]).abs().max() > 1e-5
        for ours, twins in zip(fast, slow, strict=True):
            assert ours.shape == (5, 2)
            torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_head_is_a_pure_function_of_its_seed_and_the_body_is_the_checkpoints(kind, saved):
    folder = saved(kind)
    models = [open_classifier(folder, "float32", LABELS, seed) for seed in (0, 0, 1)]
    heads = [digest({n: t for n, t in one.model.named_parameters() if n in one.fresh}) for one in models]
    assert heads[0] == heads[1] != heads[2]
    opened, base = models[0], tiny_model(kind)
    for name, tensor in opened.model.named_parameters():
        if name in opened.fresh:
            if tensor.dim() > 1:
                assert 0.01 < float(tensor.detach().std()) < 0.03  # the usual scale, 0.02
        else:
            assert torch.equal(tensor, base.get_parameter(name))


def test_a_classifier_sees_the_sentence_alone_and_pairs_as_its_tokenizer_joins_them(reviews_spec, tokenizer):
    task = Task(reviews_spec, tokenizer, for_head=True)
    assert task.prompts(["a warm film"]).inputs["input_ids"][0].tolist() == tokenizer("a warm film")["input_ids"]
    pair = dataclasses.replace(
        reviews_spec, template="*cls**sent_0**mask**sent_1**sep+*", sentences=("first", "second")
    )
    joined = Task(pair, tokenizer, for_head=True).prompts([("a warm film", "it was dull")])
    assert joined.inputs["input_ids"][0].tolist() == tokenizer("a warm film", "it was dull")["input_ids"]


def test_a_head_alone_leaves_the_body_as_it_is(config, tmp_path):
    result = train(dataclasses.replace(config, adapter=Head(alone=True)), tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.weights.digest() == result.final_weights != run.base
    assert all(name.startswith("classifier.") for name in run.weights.names)


def test_an_exported_head_is_a_classifier_that_answers_alike(config, tmp_path):
    train(config, tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    (ours,) = predict(run, ["a warm and funny film"])
    export(run, tmp_path / "model")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "model"), top_k=None)
    theirs = {one["label"]: one["score"] for one in pipe(["a warm and funny film"])[0]}
    assert theirs == pytest.approx(ours, abs=1e-5)


def test_label_words_need_not_be_one_token_for_a_head(reviews_spec, tokenizer):
    spec = dataclasses.replace(reviews_spec, words={"0": "unbelievably tedious", "1": "great"})
    with pytest.raises(InputError, match="tokens for this tokenizer"):
        Task(spec, tokenizer)
    assert Task(spec, tokenizer, for_head=True).word_ids is None


def test_a_classifier_with_a_trained_head_is_refused(config, tmp_path):
    train(config, tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run")
    export(run, tmp_path / "model")
    with pytest.raises(InputError, match="has a trained head already"):
        train(dataclasses.replace(config, model=str(tmp_path / "model")), tmp_path / "again")
    with pytest.raises(InputError, match="lacks weights of its masked-LM head"):
        train(dataclasses.replace(config, model=str(tmp_path / "model"), adapter=Full()), tmp_path / "words")

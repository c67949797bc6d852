"""A run with a readout: base and journal give its answers at every evaluation, and nowhere else."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from noback import Accuracy, Full, Head, InputError, Lora, Prefix, predict, report, train
from noback.answers import scored
from noback.engines import Reference, rows_shape
from noback.folder import RunFolder
from noback.journal import read_journal
from noback.journal_layout import begun
from noback.run import Run, drawn_data
from noback.tuned import tuned_run
from noback.watching import Silent
from tests.conftest import tiny_model


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def answers_of(run):
    return scored(run.engine, run.task.prompts([("a warm film",), ("dull and slow",)]))[0]


@pytest.fixture
def trained(config, tmp_path):
    return train(config, tmp_path / "run")


def test_base_and_journal_give_the_readout_at_every_step(config, trained, tmp_path):
    contents = read_journal(tmp_path / "run" / "journal")
    assert [one.step for one in contents.evaluations] == [0, 3, 6, 7]
    held = [one.readout for one in contents.evaluations]
    assert held[0] == held[1]  # fitted at 0, half-way and the end
    assert len(set(held)) == 3
    (tmp_path / "alone").write_bytes((tmp_path / "run" / "journal").read_bytes())
    for place in (tmp_path / "run", tmp_path / "alone"):
        replayed, _ = tuned_run(place, "final", snapshots=False)
        assert replayed.weights.digest() == trained.final_weights
        assert replayed.readout_values == held[-1]
    for step, values in ((0, held[0]), (2, held[0]), (5, held[1]), (6, held[2])):
        assert tuned_run(tmp_path / "run", str(step))[0].readout_values == values
    plain = Run(dataclasses.replace(config, readout=None))
    base, _ = tuned_run(tmp_path / "run", "0")
    assert (answers_of(base) - answers_of(plain)).abs().max() > 0.01


CAUSAL = {"template": "An opinion: {sentence} It was", "words": "0= bad,1= good"}


@pytest.mark.parametrize("adapter", [Full(), Lora(rank=2), Prefix(tokens=2)], ids=lambda one: one.kind)
@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_so_they_do_for_masked_and_causal_models_and_every_adapter(config, tiny_causal_folder, tmp_path, kind, adapter):
    other = {"model": str(tiny_causal_folder), **CAUSAL} if kind == "causal" else {}
    config = dataclasses.replace(config, adapter=adapter, steps=3, eval_every=2, **other)
    result = train(config, tmp_path / "run")
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    contents = read_journal(tmp_path / "run" / "journal")
    assert replayed.weights.digest() == result.final_weights
    assert replayed.readout_values == contents.evaluations[-1].readout
    assert len(replayed.readout_values) == 4 * 2 * (16 + (kind == "masked"))  # a causal decoder has no biases
    assert np.frombuffer(replayed.readout_values, "<f4").any()
    texts = ["a warm film", "dull and slow"]
    assert predict(replayed, texts) == predict(tuned_run(tmp_path / "run", "final")[0], texts)


def test_words_of_several_tokens_are_refused(config, tiny_causal_folder, tmp_path):
    several = {**CAUSAL, "words": "0= an utterly dreadful thing,1= good"}
    with pytest.raises(InputError, match="label words of one token each"):
        train(dataclasses.replace(config, model=str(tiny_causal_folder), **several), tmp_path / "run")


def test_the_trunk_is_measured_with_the_readout_in_its_losses(config, trained, tmp_path):
    words = train(dataclasses.replace(config, readout=None), tmp_path / "words")
    assert words.history.steps[0] != trained.history.steps[0]
    assert words.final_weights != trained.final_weights
    assert words.zero_shot == trained.zero_shot  # the test set is answered by the label words alone


def test_a_fit_lowers_the_loss_of_the_examples_it_sees(config, trained, tmp_path):
    fits = [line for line in lines_of(tmp_path / "run") if line["kind"] == "readout"]
    assert [(line["step"], line["decay"], line["examples"]) for line in fits] == [(0, 0.1, 8), (6, 0.1, 8), (7, 0.1, 8)]
    first = next(line for line in lines_of(tmp_path / "run") if line["kind"] == "validation")  # the same eight
    assert first["loss"] == pytest.approx(fits[0]["loss"], rel=1e-5)
    words = train(dataclasses.replace(config, readout=None, steps=1), tmp_path / "words")
    assert fits[0]["loss"] < words.history.evaluations[0].loss
    (untouched,) = (line for line in lines_of(tmp_path / "run") if line["kind"] == "untouched")
    assert untouched["loss"] == pytest.approx(words.history.evaluations[0].loss, rel=1e-6)


def test_the_untouched_models_readout_and_a_probe_are_tested_beside_it(trained, tmp_path):
    lines = {line["kind"]: line for line in lines_of(tmp_path / "run")}
    frozen, probe, first = (lines[kind] for kind in ("frozen_readout", "linear_probe", "validation"))
    assert frozen["examples"] == probe["examples"] == 8
    assert frozen["loss"] == pytest.approx(
        next(line for line in lines_of(tmp_path / "run") if line["kind"] == "validation")["loss"], rel=1e-5
    )
    assert probe["loss"] != frozen["loss"]
    assert first


def test_a_run_without_a_readout_writes_the_format_that_earlier_versions_read(config, trained, tmp_path):
    train(dataclasses.replace(config, readout=None), tmp_path / "words")
    assert (tmp_path / "words" / "journal").read_bytes().startswith(b"noback journal 3\n")
    assert (tmp_path / "run" / "journal").read_bytes().startswith(b"noback journal 4\n")


def test_the_journal_grows_by_the_readouts_values_at_evaluations_alone(trained, tmp_path):
    path = tmp_path / "run" / "journal"
    contents = read_journal(path)
    values = 4 * 2 * (16 + 1)  # two labels, sixteen features and a bias
    with path.open("rb") as file:
        begin = begun(file, path).size
    records = len(contents.steps) + len(contents.evaluations) + 1  # the seal
    expected = contents.record_bytes * records + len(contents.evaluations) * (values + 8)
    assert path.stat().st_size - begin == expected


def test_result_and_report_say_what_the_readout_gives_alone(trained, tmp_path):
    lines = {line["kind"]: line for line in lines_of(tmp_path / "run")}
    found = (trained.frozen_readout, trained.linear_probe)
    assert found == tuple(lines[kind]["accuracy"] for kind in ("frozen_readout", "linear_probe"))
    text = report(tmp_path / "run", out=tmp_path / "page.html").path.read_text()
    for said in ("readout, model untouched", "linear probe, model untouched", "--readout-decay 0.1"):
        assert said in text


def test_a_model_that_bounds_what_its_decoder_gives_is_refused(config, tmp_path):
    model = tiny_model("roberta")
    own = model.lm_head.forward
    model.lm_head.forward = lambda hidden: own(hidden).tanh()
    with pytest.raises(InputError, match="changes what its decoder gives"):
        rows_shape(model, 2, {"input_ids": torch.ones((1, 4), dtype=torch.long)})


def test_an_objective_without_a_gradient_leaves_the_readout_out_and_says_so(config, tmp_path):
    said = []

    class Watch(Silent):
        def note(self, text):
            said.append(text)

    train(dataclasses.replace(config, objective=Accuracy()), tmp_path / "run", watcher=Watch())
    assert any("readout: left out, for objective 'accuracy' has no gradient" in text for text in said)
    assert "readout" not in read_journal(tmp_path / "run" / "journal").header["config"]


def test_a_readout_on_a_head_is_refused(config, tmp_path):
    with pytest.raises(InputError, match="a readout stands on top of label words, and adapter 'head' reads none"):
        train(dataclasses.replace(config, adapter=Head()), tmp_path / "run")


def test_scores_are_the_reference_engines_with_the_rows(config, tmp_path):
    run = Run(config, RunFolder(tmp_path / "run"))
    run.task.use(drawn_data(config))
    run.readout.rows.take(np.random.RandomState(1).normal(size=(2, 17)))
    values = torch.from_numpy(run.readout.rows.values())
    batch, points = run.batch(0), [*config.estimator.search((3,)).send(None)]
    reference = Reference(run.model, run.weights, run.task.word_ids, features=True)
    for found, slow in zip(run.engine.score(batch, points), reference.score(batch, points), strict=True):
        expected = slow[:, :2] + slow[:, 2:] @ values[:, :16].T + values[:, 16]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

"""Causal models from end to end: runs with label words that come next."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from noback import Full, LocalEngine, Lora, Prefix, RunConfig, evaluate, export, predict, tuned_run
from noback.calibration import calibrated_accuracy
from noback.engines import Local, Reference, Tally
from noback.errors import InputError
from noback.evaluating import answers
from noback.folder import RunFolder
from noback.replaying import go_to
from noback.run import Run, drawn_data
from noback.training import Interrupted, resume, train
from noback.tuned import open_run
from noback.values import Move, Term

STEPS = 3


@pytest.fixture
def config(tiny_causal_folder, data_folder):
    return RunConfig(
        model=str(tiny_causal_folder), task="reviews-causal", data=str(data_folder), steps=STEPS, batch=4, eval_every=1
    )


def adapted(config, adapter):
    return replace(config, adapter=adapter)


ADAPTERS = [Full(), Lora(rank=2), Prefix(tokens=2)]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
def test_the_journal_and_the_base_give_the_tuned_weights(adapter, config, tmp_path):
    result = train(adapted(config, adapter), tmp_path / "run")
    replayed, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert replayed.weights.digest() == result.final_weights


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
def test_a_stopped_run_goes_on_to_the_same_bits(adapter, config, tmp_path):
    whole = train(adapted(config, adapter), tmp_path / "whole")
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train(adapted(config, adapter), tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == whole.final_weights


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
def test_the_engine_of_a_run_gives_what_its_slow_twin_gives(adapter, config):
    run = Run(adapted(config, adapter), RunFolder("."))
    run.task.use(drawn_data(config))
    points = [Move((Term(3, 1e-2),)), Move((Term(3, -1e-2),))]
    batch = run.batch(0)
    fast = run.engine.score(batch, points)
    slow = Reference(run.model, run.weights, run.task.word_ids).score(batch, points)
    assert not run.engine.point_by_point
    assert (slow[0] - slow[1]).abs().max() > 1e-4  # the points are apart, so agreement means something
    for ours, twins in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, twins, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("adapter", [*ADAPTERS, Full(tune="last:1")], ids=["full", "lora", "prefix", "last layer"])
def test_a_stopped_run_that_shares_demonstrations_goes_on_to_the_same_bits(adapter, config, tmp_path):
    shown = replace(config, adapter=adapter, demonstrations=2)
    whole = train(shown, tmp_path / "whole")
    (found,) = [line for line in RunFolder(tmp_path / "whole").read_metrics() if line["kind"] == "sharing"]
    assert found["cached"] > found["tokens"] / 3
    assert (found["below"] > 0) is (adapter == Full(tune="last:1"))
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train(shown, tmp_path / "run", stop=lambda: next(asked))
    assert resume(tmp_path / "run").final_weights == whole.final_weights


def test_eight_demonstrations_before_sixteen_prompts_are_computed_once_a_point():
    config = RunConfig(model="mini-causal", task="reviews-causal", demonstrations=8, shots=16, batch=16, test_limit=8)
    run = Run(config, RunFolder("."))
    run.task.use(drawn_data(config))
    batch, points = run.batch(0), [Move((Term(5, side * run.config.eps),)) for side in (1.0, -1.0)]
    plain = Local(run.model, run.weights, run.task.word_ids, share="none").score(batch, points)
    for ours, theirs in zip(run.engine.score(batch, points), plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ids, lengths = batch.inputs["input_ids"].tolist(), batch.inputs["attention_mask"].sum(dim=1).tolist()
    computed = {tuple(row[: end + 1]) for row, length in zip(ids, lengths, strict=True) for end in range(length)}
    assert run.engine.tally == Tally(tokens=2 * sum(lengths), cached=2 * (sum(lengths) - len(computed)))
    assert run.engine.tally.cached > 0.7 * run.engine.tally.tokens


def test_a_run_without_sharing_moves_as_one_with_it_to_rounding(config, tmp_path):
    shown = replace(config, demonstrations=2)
    train(shown, tmp_path / "shared")
    train(replace(shown, engine=LocalEngine(share="none")), tmp_path / "plain")
    slopes = [[step.slopes for step in open_run(tmp_path / name)[1].steps] for name in ("shared", "plain")]
    torch.testing.assert_close(*map(torch.tensor, slopes), atol=1e-3, rtol=1e-3)
    assert not [line for line in RunFolder(tmp_path / "plain").read_metrics() if line["kind"] == "sharing"]


def test_an_exported_model_opens_as_a_causal_model_and_answers_the_same(config, tmp_path):
    train(config, tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokens = run.tokenizer("a warm film It was", return_tensors="pt")["input_ids"][:, :-1]  # without </s>
    with torch.inference_mode():
        logits = model(input_ids=tokens).logits[0, -1, run.task.word_ids]
    (chances,) = predict(run, ["a warm film"])
    assert list(chances) == ["0", "1"]
    torch.testing.assert_close(torch.tensor(list(chances.values())), logits.softmax(dim=0), atol=1e-5, rtol=1e-5)


def test_evaluation_of_the_base_is_the_zero_shot_that_the_run_measured(config, tmp_path):
    result = train(config, tmp_path / "run")
    run, contents = open_run(tmp_path / "run")
    go_to(run, 0, contents)
    score, _ = evaluate(run)
    assert score.accuracy == result.zero_shot
    assert result.calibrated == calibrated_accuracy(run, *answers(run, "test")[:2])


def test_the_embedded_causal_model_knows_something_once_it_is_calibrated(noback):
    code, out, err = noback(
        "baseline", "zero-shot", "--model", "mini-causal", "--task", "reviews-causal", "--test-limit", 100, "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["calibrated"] > 0.7
    assert found["calibrated"] != found["zero_shot"]


def test_calibration_takes_off_what_a_content_free_prompt_gets(config):
    run = Run(config, RunFolder("."))
    run.task.use(drawn_data(config))
    logits, gold, _ = answers(run, "test")
    free = run.engine.score(run.task.prompts(["N/A"]), [Move(())])[0]
    expected = ((logits - free).argmax(dim=1) == gold).double().mean()
    assert calibrated_accuracy(run, logits, gold) == pytest.approx(float(expected))


def test_a_masked_task_has_no_calibrated_zero_shot(tiny_folder, data_folder, tmp_path):
    config = RunConfig(model=str(tiny_folder), data=str(data_folder), steps=1, batch=4)
    assert train(config, tmp_path / "run").calibrated is None


def test_a_masked_model_is_refused_for_a_causal_task(tiny_folder, data_folder, tmp_path):
    config = RunConfig(model=str(tiny_folder), task="reviews-causal", data=str(data_folder))
    with pytest.raises(InputError, match=r"is a masked LM \(RobertaForMaskedLM\) and the task is for causal ones"):
        train(config, tmp_path / "run")


def test_a_causal_model_is_refused_for_a_masked_task(tiny_causal_folder, data_folder, tmp_path):
    config = RunConfig(model=str(tiny_causal_folder), data=str(data_folder))
    with pytest.raises(InputError, match=r"is a causal LM \(LlamaForCausalLM\) and the task is for masked ones"):
        train(config, tmp_path / "run")


def test_a_head_is_refused_for_a_causal_task(config, noback, tmp_path):
    code, _, err = noback(
        "train", "--model", config.model, "--task", "reviews-causal", "--data", config.data, "--adapter", "head"
    )
    assert code == 2
    assert "adapter 'head' is for masked models and task 'reviews-causal' is for causal ones" in err

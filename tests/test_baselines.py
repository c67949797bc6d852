"""Baselines: the same data and evaluation by other means."""

import dataclasses

import pytest
import torch

from noback import Full, Head, InputError, Lora, Prefix, RunConfig, Sgd, baselines
from noback.baselines import baseline
from noback.evaluating import score
from noback.run import Run, drawn_data
from noback.usual import usual_lr


@pytest.fixture
def config(tiny_folder, data_folder):
    return RunConfig(model=str(tiny_folder), data=str(data_folder), steps=30, batch=8, eval_every=5)


def test_zero_shot_is_the_base_models_score(config):
    found = baseline(config, "zero-shot")
    run = Run(
        config,
    )
    run.task.use(drawn_data(config))
    assert found.best == found.zero_shot == score(run, "test").accuracy
    assert (found.steps, found.forwards, found.backwards) == (0, 0, 0)


def ready(config):
    run = Run(
        config,
    )
    run.task.use(drawn_data(config))
    return run


def test_a_linear_probe_reads_the_features_at_the_mask(config):
    run = ready(config)
    features, gold = baselines._features(run, "test")
    batch = next(run.task.batches("test", 8))
    with torch.no_grad():
        hidden = run.model.roberta(**batch.inputs).last_hidden_state[range(8), batch.mask_positions]
    torch.testing.assert_close(torch.from_numpy(features).float(), hidden)
    assert gold.tolist() == batch.gold.tolist()
    found = baseline(config, "probe")
    assert found.tuned == 17
    assert found.best >= 0.5


@pytest.mark.parametrize("adapter", [Full(), Lora(rank=4), Prefix(tokens=3), Head(), Full("biases")], ids=str)
def test_adam_lowers_the_loss_of_what_the_adapter_tunes(config, adapter):
    run = ready(dataclasses.replace(config, adapter=adapter, steps=60))
    before = score(run, "train").loss
    found = baselines._adam(run, 30 * usual_lr(adapter.kind, "backprop", "adam", "float32"), run.watcher, lambda: False)
    assert score(run, "train").loss < before - 2e-4
    assert (found["backwards"], found["tuned"]) == (60, run.weights.size)


def test_adam_leaves_frozen_weights_alone_and_keeps_the_best_evaluation(config):
    run = Run(dataclasses.replace(config, adapter=Lora(rank=2)))
    run.task.use(drawn_data(config))
    frozen = {n: t.detach().clone() for n, t in run.model.named_parameters() if n not in run.weights.names}
    found = baselines._adam(run, 1e-2, run.watcher, lambda: False)
    assert all(torch.equal(frozen[name], run.model.get_parameter(name)) for name in frozen)
    assert run.weights.digest() != run.start or found["best_step"] == 0
    assert score(run, "validation").score == found["validation"]


def test_a_method_or_a_rate_that_makes_no_sense_is_refused(config):
    with pytest.raises(InputError, match="did you mean 'adam'"):
        baseline(config, "adan")


def test_the_command_prints_json_and_text(config, noback):
    import json

    flags = ("--model", config.model, "--data", config.data, "--batch", 8, "--steps", 3)
    code, out, err = noback("baseline", "adam", *flags, "--lr", "1e-3", "--json")
    assert code == 0, err
    assert json.loads(out)["lr"] == 1e-3
    code, out, _ = noback("baseline", "zero-shot", *flags)
    assert code == 0
    assert "zero-shot: test accuracy" in out
    code, _, err = noback("baseline", "probes", *flags)
    assert (code, "did you mean 'probe'" in err) == (2, True)


def test_the_lr_of_a_configuration_is_adams_where_it_is_given(config):
    for lr, used in ((None, 1e-4), (3e-3, 3e-3)):
        assert baseline(dataclasses.replace(config, rule=Sgd(lr=lr), steps=1), "adam").lr == used

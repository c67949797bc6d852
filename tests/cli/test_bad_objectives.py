"""Bad input about objectives, adapters, comparisons, eps and trackers: exit code 2, one sentence, nothing lost."""

import importlib
import shutil
import sys

import pytest


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--objective", "acuracy"), "objective is 'acuracy'; expected one of accuracy, cross_entropy"),
        (("--objective", "no_such_module:f"), "'no_such_module:f' cannot be imported: ModuleNotFoundError"),
        (("--objective", "math:"), "'math:' is no module:function"),
        (("--objective", "math:no_such"), "module 'math' has no function 'no_such'"),
        (
            ("--adapter", "heads"),
            "adapter is 'heads'; expected one of full, head, lora, prefix, sparse; did you mean 'head'?",
        ),
        (("--adapter", "head", "--set", "adapter.seed=-1"), "adapter.seed is -1"),
        (("--set", "adapter.alone=true"), "adapter 'full' has no option 'adapter.alone'; adapter 'head' has it"),
        (
            ("--adapt-ties", "--eps", "0.5", "--set", "estimator.adapt_ties.largest=0.01"),
            "adapt_ties.largest is 0.01; expected eps, 0.5, or more",
        ),
        (("--set", "adapter.rank=2"), "adapter 'full' has no option 'adapter.rank'; adapter 'lora' has it"),
        (("--adapter", "prefix", "--set", "adapter.tokens=200"), "adapter.tokens is 200; the model does not take"),
        (("--adapter", "lora", "--set", "adapter.start=''"), "adapter.start is empty"),
        (("--log-to", ","), "--log-to is ','; expected words with commas between"),
        (("--health-every", "0"), "--health-every is '0'; expected a whole number above zero"),
        (("--log-to", "tensorbord"), "did you mean 'tensorboard'?"),
    ],
)
def test_an_objective_or_a_watch_that_makes_no_sense_is_refused(train, flags, said):
    assert said in train(*flags)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('a\\nb')", "raised ValueError: a b (costs.py, line 2)"),
        ("return float('nan')", "returned nan; expected a finite number"),
        ("return logits", "returned shape (8, 2); expected one number for the whole batch"),
        ("return None", "returned NoneType None; expected a number"),
    ],
)
def test_an_objective_function_that_fails_is_told_of_and_the_run_can_go_on(
    body, said, noback, tiny_folder, data_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "costs", raising=False)
    (tmp_path / "costs.py").write_text(f"def cost(logits, gold):\n    {body}\n")
    flags = ("--model", tiny_folder, "--data", data_folder, "--objective", "costs:cost", "--out", "run")
    flags += ("--steps", 2, "--batch", 4)
    code, _, err = noback("train", *flags)
    sentence = err.splitlines()[-1]  # notes on the data stand before it
    assert code == 2
    assert said in sentence
    assert "nothing is lost: fix it, then noback resume run --trust" in sentence
    del sys.modules["costs"]
    importlib.invalidate_caches()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    (tmp_path / "costs.py").write_text("def cost(logits, gold):\n    return logits.sum()\n")
    code, _, err = noback("resume", "run", "--trust")
    assert code == 0, err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("compare", "--objectives", "accuracy,acuracy"), "objective is 'acuracy'"),
        (("compare", "--objectives", "tail/accuracy"), "is 'tail'; expected one of head, words"),
        (("compare", "--objectives", "accuracy,accuracy"), "named twice"),
        (("compare", "--eps", "1e-3,x"), "eps is '1e-3,x'; expected numbers with commas between"),
        (("compare", "--eps", "1e-3,-1"), "eps is -1.0; expected a number above zero"),
        (("epsilon", "--at", "small"), "--at is 'small'; expected numbers"),
        (("epsilon", "--at", "0"), "eps is 0.0; expected a number above zero"),
        (("epsilon", "--probes", "none"), "--probes is 'none'; expected a whole number above zero"),
        (("epsilon", "--objectives", "head/"), "objective is ''; expected one of"),
        (("epsilon", "--objectives", "accuracy,accuracy"), "name one twice"),
        (("epsilon", "--objectives", ""), "--objectives is ''; expected words"),
        (("compare", "--objectives", "cross_entropy,no_such_module:f"), "cannot be imported"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(command, said, refused, tiny_folder, data_folder, tmp_path):
    out = tmp_path / "out"
    sentence = refused(command[0], "--model", tiny_folder, "--data", data_folder, "--out", out, *command[1:])
    assert said in sentence
    assert not out.exists()


def test_a_comparison_whose_table_is_damaged_is_refused(refused, tmp_path):
    (tmp_path / "comparison.json").write_text("{")
    assert "is not JSON" in refused("resume", tmp_path)
    (tmp_path / "comparison.json").write_text("{}")
    assert "is no comparison's table" in refused("resume", tmp_path)

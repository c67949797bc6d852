"""noback engine command: what it prints is what a server needs for the run that was described."""

from __future__ import annotations

import json
import shlex

import pytest


def command(noback, *words):
    code, out, err = noback("engine", "command", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def flag(words, name):
    return words[words.index(name) + 1]


def test_rank_targets_and_slots_are_those_of_the_run(noback):
    told = command(noback, "mini-causal", "--directions", "3", "--set", "adapter.rank=12",
                   "--set", "adapter.targets=q_proj,v_proj")  # fmt: skip
    sglang, vllm = told["sglang"]["command"], told["vllm"]["command"]
    assert (flag(sglang, "--max-lora-rank"), flag(vllm, "--max-lora-rank")) == ("12", "16")  # vLLM has steps
    assert (flag(sglang, "--max-loras-per-batch"), flag(vllm, "--max-loras")) == ("7", "6")
    place = sglang.index("--lora-target-modules")
    assert sglang[place + 1 : place + 4] == ["q_proj", "v_proj", "--max-loras-per-batch"]
    assert told["vllm"]["environment"] == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def test_one_engine_is_shown_with_its_address_and_its_gpus(noback):
    told = command(noback, "mini-causal", "--engine", "vllm", "--url", "http://10.0.0.3:9000", "--tp", "4")
    words = told["vllm"]["command"]
    assert list(told) == ["vllm"]
    assert (flag(words, "--host"), flag(words, "--port")) == ("10.0.0.3", "9000")
    assert flag(words, "--tensor-parallel-size") == "4"


def test_a_model_that_is_not_here_gets_all_targets(noback):
    words = command(noback, "/nowhere/base", "--engine", "sglang")["sglang"]["command"]
    assert flag(words, "--lora-target-modules") == "all"


def test_a_run_of_the_models_own_linears_gets_room_for_its_moves(noback):
    words = ["mini-causal", "--engine", "sglang", "--adapter", "full", "--set", "adapter.tune=linears"]
    told = command(noback, *words, "--noise", "low_rank", "--noise-rank", "3")["sglang"]["command"]
    assert flag(told, "--max-lora-rank") == str(3 * 32)
    place = told.index("--lora-target-modules")
    assert told[place + 1 : place + 8] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_what_is_printed_is_a_shell_command(noback):
    told = command(noback, "mini-causal", "--engine", "vllm")["vllm"]
    words = shlex.split(told["shell"].replace("\\\n", ""))
    assert words == [*(f"{name}={value}" for name, value in told["environment"].items()), *told["command"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mini-causal", "--adapter", "full"], "use --adapter lora"),
        (["mini-causal", "--engine", "vllm", "--adapter", "full", "--noise", "rank1"], "use --adapter lora"),
        (["mini-causal", "--tp", "none"], "--tp is 'none'"),
        (["mini-causal", "--serve-dtype", "bf16"], "did you mean 'bfloat16'"),
        (["mini-causal", "--engine", "vllm", "--serve-dtype", "float32"], "bfloat16 or float16 on a GPU"),
        (["mini-causal", "--model", "mini"], "name it once"),
    ],
)
def test_what_no_server_can_do_is_refused(noback, words, sentence):
    code, out, err = noback("engine", "command", *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_an_action_that_is_none_is_refused_with_the_actions(noback):
    code, _, err = noback("engine", "start")
    assert code == 2
    assert "'command'" in err
